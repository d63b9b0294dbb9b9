/*
 * Whole calls over an exchange that is not HTTP: the input chooses kind, codec, compression, how
 * the body is cut and what is in it. Whatever comes, there is one answer of the right form,
 * handlers are told of the end once, and nothing is left on the loop.
 */
#include "envd/rpc/rpc.h"
#include "lib/json.h"
#include "proto/process.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fake {
	struct http_exchange ex;
	struct buf out;
	bool started, paused, begun, ended, aborted;
	unsigned calls, closes;
};

static struct fake *fake_of(struct http_exchange *ex)
{
	return container_of(ex, struct fake, ex);
}

static void body_start(struct http_exchange *ex)
{
	fake_of(ex)->started = true;
}

static void body_pause(struct http_exchange *ex)
{
	fake_of(ex)->paused = true;
}

static void body_resume(struct http_exchange *ex)
{
	fake_of(ex)->paused = false;
}

static int begin(struct http_exchange *ex, int status, int64_t length)
{
	assert(!fake_of(ex)->begun);
	fake_of(ex)->begun = true;
	ex->status = status;
	return 0;
}

static int write_body(struct http_exchange *ex, const struct iovec *pieces, size_t count)
{
	assert(fake_of(ex)->begun && !fake_of(ex)->ended);
	for (size_t i = 0; i < count; i++)
		assert(buf_append(&fake_of(ex)->out, pieces[i].iov_base, pieces[i].iov_len) == 0);
	return 0;
}

static int end(struct http_exchange *ex, const struct http_headers *trailers)
{
	assert(fake_of(ex)->begun && !fake_of(ex)->ended);
	fake_of(ex)->ended = true;
	return 0;
}

static int finish(struct http_exchange *ex, const struct iovec *pieces, size_t count)
{
	write_body(ex, pieces, count);
	return end(ex, NULL);
}

static void abort_exchange(struct http_exchange *ex)
{
	fake_of(ex)->aborted = true;
}

static void free_exchange(struct http_exchange *ex)
{
}

static const struct http_exchange_ops ops = {
	.body_start = body_start,
	.body_pause = body_pause,
	.body_resume = body_resume,
	.begin = begin,
	.write = write_body,
	.end = end,
	.finish = finish,
	.abort = abort_exchange,
	.free = free_exchange,
};

static void on_message(struct rpc_call *call, const ProtobufCMessage *message)
{
	rpc_next(call);
}

static void on_message_end(struct rpc_call *call)
{
	Process__StreamInputResponse response = PROCESS__STREAM_INPUT_RESPONSE__INIT;

	rpc_reply(call, &response.base);
}

static void on_closed(struct rpc_call *call, int status)
{
	((struct fake *)call->service)->closes++;
}

static const struct rpc_handler handler = {
	.on_message = on_message, .on_message_end = on_message_end, .on_closed = on_closed};

static void start(struct rpc_call *call, const ProtobufCMessage *message)
{
	Process__StartResponse response = PROCESS__START_RESPONSE__INIT;

	((struct fake *)call->service)->calls++;
	rpc_call_set_handler(call, &handler, NULL);
	switch (call->method->kind) {
	case RPC_UNARY:
		rpc_reply(call, &response.base);
		break;
	case RPC_SERVER_STREAM:
		assert(rpc_send(call, &response.base) == 0);
		rpc_finish(call);
		break;
	case RPC_CLIENT_STREAM:
		rpc_next(call);
		break;
	}
}

static const struct rpc_method methods[] = {
	{"/u", RPC_UNARY, &process__start_request__descriptor, &process__start_response__descriptor,
	 start},
	{"/s", RPC_SERVER_STREAM, &process__start_request__descriptor,
	 &process__start_response__descriptor, start},
	{"/c", RPC_CLIENT_STREAM, &process__stream_input_request__descriptor,
	 &process__stream_input_response__descriptor, start},
};

static void add(struct fake *f, struct str name, struct str value)
{
	assert(http_headers_add(&f->ex.request.headers, &f->ex.arena, name, value) == 0);
}

/* Exactly one end-stream envelope, and it is last. */
static void check_stream(struct str body)
{
	unsigned flags = 0;

	assert(body.len > 0);
	while (body.len > 0) {
		const unsigned char *p = (const unsigned char *)body.p;
		size_t len;

		assert(body.len >= 5 && flags == 0);
		flags = p[0];
		len = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
		assert(body.len - 5 >= len);
		body.p += 5 + len;
		body.len -= 5 + len;
	}
	assert(flags == 2);
}

static void feed(struct fake *f, struct loop *loop, const char *body, size_t len, size_t step)
{
	size_t at = 0;
	bool ended = false;

	for (int idle = 0; idle < 3 && !f->ended;) {
		if (f->started && !f->paused && at < len) {
			size_t n = size_min(step, len - at);
			char *tight = xmalloc(n);

			memcpy(tight, body + at, n);
			f->ex.handler->on_body(&f->ex, tight, n);
			free(tight);
			at += n;
			idle = 0;
		} else if (f->started && !f->paused && !ended) {
			ended = true;
			f->ex.handler->on_body_end(&f->ex);
			idle = 0;
		} else {
			idle += loop->jobs_running == 0;
		}
		uv_run(&loop->uv, loop->jobs_running ? UV_RUN_ONCE : UV_RUN_NOWAIT);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static bool ready;
	struct fake f = {0};
	struct loop loop;
	const struct rpc_method *method;
	bool binary;

	if (!ready)
		json_init();
	ready = true;
	if (size < 3)
		return 0;
	method = &methods[data[0] % 3];
	binary = data[0] & 0x80;
	loop_init(&loop);
	arena_init(&f.ex.arena, 1024 * 1024);
	buf_init(&f.out, 64 * 1024 * 1024);
	f.ex.ops = &ops;
	f.ex.loop = &loop;
	f.ex.holds = 1;
	f.ex.request.method = STR("POST");
	f.ex.request.length = HTTP_LENGTH_CHUNKED;
	if (method->kind == RPC_UNARY)
		add(&f, STR("Content-Type"),
		    binary ? STR("application/proto") : STR("application/json"));
	else
		add(&f, STR("Content-Type"),
		    binary ? STR("application/connect+proto") : STR("application/connect+json"));
	if (data[0] & 0x40)
		add(&f,
		    method->kind == RPC_UNARY ? STR("Content-Encoding")
					      : STR("Connect-Content-Encoding"),
		    STR("gzip"));
	if (data[0] & 0x20)
		add(&f, STR("Connect-Timeout-Ms"),
		    (struct str){(const char *)data + 2, size_min(size - 2, 12)});
	rpc_dispatch(&f.ex, method, &f, NULL);
	feed(&f, &loop, (const char *)data + 2, size - 2, (size_t)data[1] + 1);
	assert(f.ended && !f.aborted);
	if (method->kind != RPC_UNARY)
		check_stream(buf_str(&f.out));
	f.ex.closed = true;
	f.ex.handler->on_closed(&f.ex, 0);
	assert(f.calls <= 1 && f.closes == f.calls);
	loop_run(&loop);
	assert(f.ex.holds == 1);
	loop_fini(&loop);
	arena_release(&f.ex.arena);
	buf_fini(&f.out);
	return 0;
}
