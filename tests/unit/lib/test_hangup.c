#include "tests/support/cmocka.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/hangup.h"
#include "lib/stream_uv.h"
#include "tests/support/sockets.h"
#include "tests/support/turn.h"

struct watched {
	struct hangup hangup;
	struct loop *loop;
	struct watched *other; /* forgotten by the first to be told */
	int fds[2]; /* ours, the peer's */
	int ends, resets;
};

static void on_hangup(struct hangup *hangup, bool reset)
{
	struct watched *w = container_of(hangup, struct watched, hangup);

	if (reset)
		w->resets++;
	else
		w->ends++;
	if (w->other)
		hangup_forget(w->loop, &w->other->hangup);
}

static void watch(struct watched *w, struct loop *loop, bool ends)
{
	w->loop = loop;
	w->other = NULL;
	w->ends = w->resets = 0;
	hangup_init(&w->hangup, on_hangup);
	hangup_watch(loop, &w->hangup, w->fds[0], ends);
}

static void open_watched(struct watched *w, struct loop *loop, bool ends)
{
	tcp_pair(w->fds);
	watch(w, loop, ends);
}

static void close_watched(struct watched *w)
{
	hangup_forget(w->loop, &w->hangup);
	hangup_forget(w->loop, &w->hangup);
	close_fd(&w->fds[0]);
	close_fd(&w->fds[1]);
}

static void reset_peer(int *fd)
{
	const struct linger linger = {.l_onoff = 1, .l_linger = 0};

	setsockopt(*fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close_fd(fd);
}

static void spin(struct loop *loop)
{
	for (int i = 0; i < 20; i++)
		uv_run(&loop->uv, UV_RUN_NOWAIT);
}

static void an_end_and_then_a_reset_are_told_once_each(void **state)
{
	struct watched w;
	struct loop loop;

	(void)state;
	loop_init(&loop);
	open_watched(&w, &loop, true);
	assert_int_equal(write(w.fds[1], "bytes", 5), 5); /* are not its business */
	spin(&loop);
	assert_int_equal(w.ends + w.resets, 0);
	shutdown(w.fds[1], SHUT_WR);
	TURN_UNTIL(&loop, w.ends == 1);
	assert_int_equal(write(w.fds[0], "x", 1), 1);
	spin(&loop);
	assert_int_equal(w.ends, 1);
	assert_int_equal(w.resets, 0);
	reset_peer(&w.fds[1]);
	TURN_UNTIL(&loop, w.resets == 1);
	spin(&loop);
	assert_int_equal(w.ends, 1);
	assert_int_equal(w.resets, 1);
	close_watched(&w);
	loop_fini(&loop);
}

static void the_end_of_both_directions_is_no_reset(void **state)
{
	struct watched asked, unasked;
	struct loop loop;

	(void)state;
	loop_init(&loop);
	open_watched(&asked, &loop, true);
	open_watched(&unasked, &loop, false);
	for (int i = 0; i < 2; i++) {
		shutdown(asked.fds[i], SHUT_WR);
		shutdown(unasked.fds[i], SHUT_WR);
	}
	TURN_UNTIL(&loop, asked.ends == 1);
	spin(&loop);
	assert_int_equal(asked.ends, 1);
	assert_int_equal(unasked.ends, 0);
	assert_int_equal(asked.resets + unasked.resets, 0);
	close_watched(&asked);
	close_watched(&unasked);
	loop_fini(&loop);
}

static void one_that_is_forgotten_meanwhile_is_not_told(void **state)
{
	struct watched a, b;
	struct loop loop;

	(void)state;
	loop_init(&loop);
	open_watched(&a, &loop, true);
	open_watched(&b, &loop, true);
	a.other = &b;
	b.other = &a;
	reset_peer(&a.fds[1]);
	reset_peer(&b.fds[1]);
	TURN_UNTIL(&loop, a.resets + b.resets > 0);
	spin(&loop);
	assert_int_equal(a.resets + b.resets, 1);
	close_watched(&a);
	close_watched(&b);
	loop_fini(&loop);
}

/* A server that is out of descriptors has paused streams, too. */
static void watching_takes_no_descriptor(void **state)
{
	struct rlimit before, none;
	struct watched w;
	struct loop loop;

	(void)state;
	loop_init(&loop);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	none = before;
	none.rlim_cur = 0;
	tcp_pair(w.fds);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	watch(&w, &loop, true);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	reset_peer(&w.fds[1]);
	TURN_UNTIL(&loop, w.resets == 1);
	close_watched(&w);
	loop_fini(&loop);
}

/* ---- as streams use it ---- */

struct paused {
	struct loop loop;
	struct stream *stream;
	int peer, hangups, resets, ends, end_status, closed;
	size_t got;
};

static void on_read(struct stream *s, const char *data, size_t len)
{
	(void)data;
	((struct paused *)s->user)->got += len;
}

static void on_end(struct stream *s, int status)
{
	struct paused *p = s->user;

	p->ends++;
	p->end_status = status;
}

static void on_stream_hangup(struct stream *s, bool reset)
{
	struct paused *p = s->user;

	if (reset)
		p->resets++;
	else
		p->hangups++;
}

static void on_closed(struct stream *s)
{
	((struct paused *)s->user)->closed++;
}

static const struct stream_events events = {
	.on_read = on_read,
	.on_end = on_end,
	.on_hangup = on_stream_hangup,
	.on_closed = on_closed,
};

static void start_paused(struct paused *p)
{
	int fds[2];

	*p = (struct paused){0};
	loop_init(&p->loop);
	tcp_pair(fds);
	assert_int_equal(stream_uv_open_tcp(&p->loop, fds[0], &p->stream), 0);
	p->peer = fds[1];
	p->stream->events = &events;
	p->stream->user = p;
	assert_int_equal(stream_read_start(p->stream), 0);
	assert_int_equal(write(p->peer, "one", 3), 3);
	TURN_UNTIL(&p->loop, p->got == 3);
	stream_read_stop(p->stream);
	assert_int_equal(write(p->peer, "two", 3), 3);
	spin(&p->loop);
	assert_int_equal(p->got, 3);
}

static void finish_paused(struct paused *p)
{
	stream_close(p->stream, false);
	loop_run(&p->loop);
	assert_int_equal(p->closed, 1);
	close_fd(&p->peer);
	loop_fini(&p->loop);
}

static void a_paused_stream_tells_of_the_end_and_still_has_the_bytes(void **state)
{
	struct paused p;

	(void)state;
	start_paused(&p);
	shutdown(p.peer, SHUT_WR);
	TURN_UNTIL(&p.loop, p.hangups == 1);
	assert_int_equal(p.ends + p.resets, 0);
	stream_read_start(p.stream);
	TURN_UNTIL(&p.loop, p.ends == 1);
	assert_int_equal(p.got, 6);
	assert_int_equal(p.end_status, 0);
	spin(&p.loop);
	assert_int_equal(p.hangups, 1);
	finish_paused(&p);
}

static void a_paused_stream_tells_of_a_reset(void **state)
{
	struct paused p;

	(void)state;
	start_paused(&p);
	reset_peer(&p.peer);
	TURN_UNTIL(&p.loop, p.resets == 1);
	assert_int_equal(p.ends, 0);
	stream_read_start(p.stream);
	TURN_UNTIL(&p.loop, p.ends == 1);
	assert_int_equal(p.got, 6);
	assert_true(p.end_status < 0);
	finish_paused(&p);
}

static void a_stream_that_is_read_again_is_not_watched(void **state)
{
	struct paused p;

	(void)state;
	start_paused(&p);
	for (int i = 0; i < 10; i++) {
		stream_read_start(p.stream);
		spin(&p.loop);
		stream_read_stop(p.stream);
		stream_read_stop(p.stream);
	}
	stream_read_start(p.stream);
	reset_peer(&p.peer);
	TURN_UNTIL(&p.loop, p.ends == 1);
	assert_int_equal(p.hangups + p.resets, 0);
	finish_paused(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_end_and_then_a_reset_are_told_once_each),
		cmocka_unit_test(the_end_of_both_directions_is_no_reset),
		cmocka_unit_test(one_that_is_forgotten_meanwhile_is_not_told),
		cmocka_unit_test(watching_takes_no_descriptor),
		cmocka_unit_test(a_paused_stream_tells_of_the_end_and_still_has_the_bytes),
		cmocka_unit_test(a_paused_stream_tells_of_a_reset),
		cmocka_unit_test(a_stream_that_is_read_again_is_not_watched),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
