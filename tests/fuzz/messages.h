/* Message types of the services, for fuzzers that let the input choose one. */
#ifndef TESTS_FUZZ_MESSAGES_H
#define TESTS_FUZZ_MESSAGES_H

#include "proto/filesystem.pb-c.h"
#include "proto/jobs.pb-c.h"
#include "proto/process.pb-c.h"

static const ProtobufCMessageDescriptor *const message_types[] = {
	&process__start_request__descriptor,
	&process__start_response__descriptor,
	&process__connect_request__descriptor,
	&process__list_response__descriptor,
	&process__update_request__descriptor,
	&process__send_input_request__descriptor,
	&process__stream_input_request__descriptor,
	&process__send_signal_request__descriptor,
	&process__close_stdin_request__descriptor,
	&filesystem__list_dir_request__descriptor,
	&filesystem__list_dir_response__descriptor,
	&filesystem__move_request__descriptor,
	&filesystem__watch_dir_request__descriptor,
	&filesystem__watch_dir_response__descriptor,
	&filesystem__get_watcher_events_response__descriptor,
	&filesystem__stat_response__descriptor,
	&jobs__create_request__descriptor,
	&jobs__list_request__descriptor,
	&jobs__list_response__descriptor,
	&jobs__wait_request__descriptor,
	&jobs__stop_request__descriptor,
	&jobs__output_request__descriptor,
	&jobs__output_response__descriptor,
	&jobs__write_stdin_request__descriptor,
	&jobs__watch_request__descriptor,
	&jobs__get_response__descriptor,
};

#endif
