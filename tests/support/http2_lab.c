#include "tests/support/http2_lab.h"

#include "tests/support/cmocka.h"

#define FIELDS_MAX 300

struct http2_lab lab;

/* ---- the server's side ---- */

static struct http2_heard *heard_of(struct http_exchange *ex)
{
	for (size_t i = 0; i < lab.dispatched; i++)
		if (lab.heard[i].ex == ex)
			return &lab.heard[i];
	fail_msg("a callback for an exchange that is closed");
	return NULL;
}

static void on_body(struct http_exchange *ex, const char *data, size_t len)
{
	assert_true(len > 0);
	assert_int_equal(buf_append(&heard_of(ex)->body, data, len), 0);
}

static void on_body_end(struct http_exchange *ex)
{
	heard_of(ex)->ends++;
}

static void on_drained(struct http_exchange *ex)
{
	heard_of(ex)->drains++;
}

static void on_closed(struct http_exchange *ex, int status)
{
	struct http2_heard *heard = heard_of(ex);

	assert_true(ex->closed);
	heard->closed++;
	heard->status = status;
	heard->ex = NULL;
	/* Must be ignored from here on. */
	http_request_body_resume(ex);
	http_exchange_abort(ex);
	assert_true(http_response_begin(ex, 200, 0) < 0);
}

static const struct http_exchange_handler recorder = {
	.on_body = on_body,
	.on_body_end = on_body_end,
	.on_drained = on_drained,
	.on_closed = on_closed,
};

static void take(struct http_exchange *ex)
{
	struct http2_heard *heard = &lab.heard[lab.dispatched++];

	assert_true(lab.dispatched < HTTP2_LAB_STREAMS);
	assert_ptr_equal(ex->server_user, &lab);
	assert_string_equal(ex->peer, "10.0.0.1:55000");
	heard->ex = ex;
	buf_init(&heard->body, SIZE_MAX / 2);
	http_exchange_set_handler(ex, &recorder, NULL);
}

static void dispatch(struct http_exchange *ex)
{
	take(ex);
	if (lab.start)
		http_request_body_start(ex);
	if (lab.answer)
		http_respond(ex, 200, "text/plain", STR("hello"));
}

static void on_bad_request(struct http_exchange *ex, int status, const char *reason)
{
	take(ex);
	lab.refused++;
	http_respond(ex, status, "text/plain", str_of(reason));
}

static void on_http2(struct http_server *server, struct stream *stream, const char *peer,
		     struct str early)
{
	http2_open(server, stream, peer, early, lab.pool, &lab.counters);
}

/* ---- the client's side ---- */

struct http2_seen *http2_lab_seen(int32_t id)
{
	assert_true(id > 0 && (id - 1) / 2 < HTTP2_LAB_STREAMS);
	return &lab.seen[(id - 1) / 2];
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
		     size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
		     void *user)
{
	struct http2_seen *seen = http2_lab_seen(frame->hd.stream_id);

	(void)session;
	(void)flags;
	(void)user;
	if (name_len == 7 && memcmp(name, ":status", 7) == 0) {
		if (value[0] == '1')
			assert_int_equal(buf_printf(&seen->interim, "%.3s ", (const char *)value),
					 0);
		else
			memcpy(seen->status, value, 3);
		return 0;
	}
	if (frame->headers.cat == NGHTTP2_HCAT_HEADERS && seen->status[0])
		assert_int_equal(buf_append(&seen->fields, "--\n", seen->ended ? 0 : 3), 0);
	assert_int_equal(buf_printf(&seen->fields, "%.*s: %.*s\n", (int)name_len,
				    (const char *)name, (int)value_len, (const char *)value),
			 0);
	return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
		   size_t len, void *user)
{
	(void)session;
	(void)flags;
	(void)user;
	assert_int_equal(buf_append(&http2_lab_seen(id)->body, data, len), 0);
	return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
	(void)session;
	(void)user;
	if (frame->hd.type == NGHTTP2_GOAWAY) {
		lab.goaways++;
		lab.goaway_code = frame->goaway.error_code;
		lab.goaway_last = frame->goaway.last_stream_id;
	}
	if (frame->hd.type == NGHTTP2_DATA && frame->hd.stream_id != lab.data_id) {
		lab.data_id = frame->hd.stream_id;
		lab.turns++;
	}
	if (frame->hd.type == NGHTTP2_PING && !(frame->hd.flags & NGHTTP2_FLAG_ACK))
		lab.pings++;
	if (frame->hd.type == NGHTTP2_PING && frame->hd.flags & NGHTTP2_FLAG_ACK)
		lab.pings_answered++;
	if (frame->hd.type == NGHTTP2_RST_STREAM)
		http2_lab_seen(frame->hd.stream_id)->reset = true;
	if ((frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS) &&
	    frame->hd.flags & NGHTTP2_FLAG_END_STREAM)
		http2_lab_seen(frame->hd.stream_id)->ended = true;
	if (frame->hd.type == NGHTTP2_SETTINGS && !(frame->hd.flags & NGHTTP2_FLAG_ACK)) {
		for (size_t i = 0; i < frame->settings.niv; i++) {
			const nghttp2_settings_entry *entry = &frame->settings.iv[i];

			if (entry->settings_id == NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS)
				lab.streams_max = entry->value;
			if (entry->settings_id == NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL)
				lab.connect_protocol = entry->value;
		}
	}
	return 0;
}

static int on_gone(nghttp2_session *session, int32_t id, uint32_t code, void *user)
{
	struct http2_seen *seen = http2_lab_seen(id);

	(void)session;
	(void)user;
	seen->closed = true;
	seen->code = code;
	return 0;
}

static void open_client(const nghttp2_settings_entry *settings, size_t count)
{
	nghttp2_session_callbacks *callbacks;
	nghttp2_option *option;

	assert_int_equal(nghttp2_session_callbacks_new(&callbacks), 0);
	assert_int_equal(nghttp2_option_new(&option), 0);
	nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
	nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
	nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_gone);
	/* The client may do wrong, and more of it at once than the server allows. */
	nghttp2_option_set_no_http_messaging(option, 1);
	nghttp2_option_set_peer_max_concurrent_streams(option, 1000);
	nghttp2_option_set_max_send_header_block_length(option, 1024 * 1024);
	nghttp2_option_set_no_auto_window_update(option, lab.windows_by_hand);
	assert_int_equal(nghttp2_session_client_new2(&lab.client, callbacks, &lab, option), 0);
	nghttp2_option_del(option);
	nghttp2_session_callbacks_del(callbacks);
	assert_int_equal(nghttp2_submit_settings(lab.client, NGHTTP2_FLAG_NONE, settings, count),
			 0);
}

/* ---- both ---- */

static bool move(void)
{
	const uint8_t *data;
	bool moved = false;
	ssize_t len;

	while ((len = nghttp2_session_mem_send(lab.client, &data)) > 0) {
		if (!lab.m->closed)
			stream_mem_feed(lab.m, data, (size_t)len);
		moved = true;
	}
	stream_mem_settle(&lab.loop);
	if (buf_length(&lab.m->output) && !lab.mute) {
		struct buf output = lab.m->output;

		buf_init(&lab.m->output, SIZE_MAX / 2);
		if (nghttp2_session_mem_recv(lab.client, (const uint8_t *)buf_data(&output),
					     buf_length(&output)) < 0)
			lab.broken = true;
		buf_fini(&output);
		moved = true;
	}
	return moved;
}

void http2_lab_settle(void)
{
	while (move())
		;
}

void http2_lab_open(struct http_server_config config, const nghttp2_settings_entry *settings,
		    size_t count)
{
	bool mute = lab.mute_at_first, by_hand = lab.windows_by_hand_at_first;
	struct stream_peer *peer = lab.peer_at_first;

	memset(&lab, 0, sizeof(lab));
	lab.mute = mute;
	lab.windows_by_hand = by_hand;
	for (size_t i = 0; i < HTTP2_LAB_STREAMS; i++) {
		buf_init(&lab.seen[i].fields, SIZE_MAX / 2);
		buf_init(&lab.seen[i].body, SIZE_MAX / 2);
		buf_init(&lab.seen[i].interim, SIZE_MAX / 2);
	}
	loop_init(&lab.loop);
	lab.pool = http2_pool_new();
	config.on_http2 = on_http2;
	config.dispatch = dispatch;
	config.on_bad_request = on_bad_request;
	config.error_field = (struct http_header){STR("X-Error"), STR("of the library")};
	config.user = &lab;
	lab.server = http_server_new(&lab.loop, &config);
	lab.m = stream_mem_new(&lab.loop);
	lab.m->stream.peer = peer;
	open_client(settings, count);
	http_server_adopt(lab.server, &lab.m->stream, "10.0.0.1:55000");
	http2_lab_settle();
}

int http2_lab_set_up(void **state)
{
	(void)state;
	http2_lab_open((struct http_server_config){.send_date = false}, NULL, 0);
	return 0;
}

void http2_lab_open_with(struct http_server_timeouts timeouts, uint32_t window)
{
	const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, window}};

	http2_lab_open((struct http_server_config){.timeouts = &timeouts}, settings, 1);
}

int http2_lab_set_up_patient(void **state)
{
	(void)state;
	http2_lab_open_with(long_waits, 65535);
	return 0;
}

static void on_stopped(void *user)
{
	*(bool *)user = true;
}

void http2_lab_stop_gently(unsigned idle_ms)
{
	http_server_stop_gently(lab.server, idle_ms, on_stopped, &lab.stopped);
}

void http2_lab_stop(void)
{
	http2_lab_stop_gently(0);
}

int http2_lab_tear_down(void **state)
{
	(void)state;
	if (!lab.stopped)
		http2_lab_stop();
	if (!lab.stopped)
		http_server_abort(lab.server);
	stream_mem_settle(&lab.loop);
	stream_mem_settle(&lab.loop);
	assert_true(lab.stopped);
	assert_true(lab.m->close_told);
	for (size_t i = 0; i < HTTP2_LAB_STREAMS; i++) {
		assert_int_equal(lab.heard[i].closed, i < lab.dispatched);
		buf_fini(&lab.heard[i].body);
		buf_fini(&lab.seen[i].fields);
		buf_fini(&lab.seen[i].body);
		buf_fini(&lab.seen[i].interim);
	}
	nghttp2_session_del(lab.client);
	stream_mem_free(lab.m);
	http2_pool_free(lab.pool);
	loop_fini(&lab.loop);
	return 0;
}

static ssize_t never(nghttp2_session *session, int32_t id, uint8_t *buf, size_t len,
		     uint32_t *flags, nghttp2_data_source *source, void *user)
{
	struct iovec *piece = source->ptr;
	size_t now;

	(void)session;
	(void)id;
	(void)user;
	if (!piece)
		return NGHTTP2_ERR_DEFERRED;
	now = size_min(len, piece->iov_len);
	memcpy(buf, piece->iov_base, now);
	piece->iov_base = (char *)piece->iov_base + now;
	piece->iov_len -= now;
	if (piece->iov_len == 0)
		*flags |= NGHTTP2_DATA_FLAG_EOF;
	return (ssize_t)now;
}

int32_t http2_lab_ask(const char *fields, bool with_body)
{
	nghttp2_nv nv[FIELDS_MAX];
	size_t count = 0;
	struct str rest = str_of(fields), line;
	int32_t id;

	while (str_split(&rest, '\n', &line)) {
		const char *colon;

		if (line.len == 0)
			continue;
		colon = memmem(line.p + 1, line.len - 1, ": ", 2);
		assert_non_null(colon);
		assert_true(count < FIELDS_MAX);
		nv[count].name = (uint8_t *)line.p;
		nv[count].namelen = (size_t)(colon - line.p);
		nv[count].value = (uint8_t *)colon + 2;
		nv[count].valuelen = (size_t)(line.p + line.len - colon - 2);
		/* As written: the library would make names lower case. */
		nv[count++].flags = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;
	}
	id = nghttp2_submit_headers(lab.client,
				    with_body ? NGHTTP2_FLAG_NONE : NGHTTP2_FLAG_END_STREAM, -1,
				    NULL, nv, count, NULL);
	assert_true(id > 0);
	http2_lab_settle();
	return id;
}

int32_t http2_lab_get(const char *path)
{
	char fields[1024];

	snprintf(fields, sizeof(fields), ":method: GET\n:scheme: http\n:authority: a\n:path: %s\n",
		 path);
	return http2_lab_ask(fields, false);
}

void http2_lab_send(int32_t id, const void *data, size_t len, bool last)
{
	struct iovec piece = {.iov_base = (void *)data, .iov_len = len};
	nghttp2_data_provider provider = {.source.ptr = &piece, .read_callback = never};

	assert_int_equal(nghttp2_submit_data(lab.client,
					     last ? NGHTTP2_FLAG_END_STREAM : NGHTTP2_FLAG_NONE, id,
					     &provider),
			 0);
	http2_lab_settle();
	assert_int_equal(piece.iov_len, 0);
}

void http2_lab_raw(const void *bytes, size_t len)
{
	http2_lab_settle();
	if (!lab.m->closed)
		stream_mem_feed(lab.m, bytes, len);
}

void http2_lab_frame(size_t len, uint8_t type, uint8_t flags, int32_t id, const void *payload)
{
	unsigned char header[9] = {(unsigned char)(len >> 16),
				   (unsigned char)(len >> 8),
				   (unsigned char)len,
				   type,
				   flags,
				   (unsigned char)(id >> 24),
				   (unsigned char)(id >> 16),
				   (unsigned char)(id >> 8),
				   (unsigned char)id};

	if (lab.m->closed)
		return;
	stream_mem_feed(lab.m, header, sizeof(header));
	if (len && !lab.m->closed)
		stream_mem_feed(lab.m, payload, len);
}

bool http2_lab_has_field(int32_t id, const char *line)
{
	struct str fields = buf_str(&http2_lab_seen(id)->fields);

	return memmem(fields.p, fields.len, line, strlen(line)) != NULL;
}
