/*
 * The parts of the running program. main.c puts them together; app_end.c takes them down again, in
 * order: at SIGTERM and SIGINT (drain, then reset what is left), or, at SIGUSR2, once a successor
 * serves.
 */
#ifndef PROXY_APP_H
#define PROXY_APP_H

#include "lib/tls/tls_reload.h"
#include "proxy/admin/admin.h"
#include "proxy/config.h"
#include "proxy/front/front.h"
#include "proxy/front/heap_keeper.h"
#include "proxy/handover.h"
#include "proxy/sighup.h"
#include "proxy/token_file.h"
#include "proxy/waking.h"

enum app_phase { PHASE_SERVING, PHASE_ANNOUNCED, PHASE_DRAINING, PHASE_ABORTING, PHASE_ENDING };

struct app {
	struct config config;
	struct loop loop;
	struct catalog *catalog;
	struct address_guard guard;
	struct relay_options relay_options;
	struct waking waking;
	struct sources *sources;
	struct record_writer writer;
	struct host_table hosts;
	struct front *front;
	struct tls_reload *certificates; /* NULL: no TLS */
	struct admin *admin;
	/* Its end: app_end.c. */
	uv_signal_t on_term, on_int, on_usr2;
	struct sighup sighup;
	struct alarm alarm;
	struct message drained;
	enum app_phase phase;
	struct handover *predecessor, *successor; /* NULL: none */
	bool predecessor_quiet; /* or there is none */
	bool admin_closing, admin_closed, left_to_successor, told_to_end, said_over, closed;
	char **argv;
	char token[TOKEN_FILE_BYTES_MAX + 1];
	int access_log_fd; /* -1: none */
	struct access_sink access_sink;
	struct heap_keeper heap_keeper;
	size_t descriptors;
};

/* Signals that end nothing, as long as nobody listens to them: held back in this thread, and in
 * those that it starts from now on. First of all. */
void app_end_hold_signals(void);
/* Its handles; before anything else is opened. */
void app_end_open(struct app *app);
/* Signals are listened to from now on: everything is open. */
void app_end_start(struct app *app);
/* The predecessor changes nothing any more. */
void app_end_predecessor_quiet(void *app);
/* For struct front_config: `user` is the app. On a worker's thread. */
void app_end_drained(void *app);

#endif
