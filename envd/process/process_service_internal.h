/* What the process_service*.c files share. */
#ifndef ENVD_PROCESS_PROCESS_SERVICE_INTERNAL_H
#define ENVD_PROCESS_PROCESS_SERVICE_INTERNAL_H

#include "envd/process/process_service.h"
#include "envd/process/process_table.h"
#include "proto/process.pb-c.h"

struct process_table *service_table(const struct rpc_call *call);
/* A live process. NULL with err: not_found, or unimplemented for a selector that selects
 * nothing. */
struct process *service_find(const struct rpc_call *call, const Process__ProcessSelector *selector,
			     struct err *err);
/* The same for a unary call, which has failed with that error when this is NULL. */
struct process *service_need(struct rpc_call *call, const Process__ProcessSelector *selector);
/* err for a selector that found nothing. */
void service_set_not_found(const Process__ProcessSelector *selector, struct err *err);
/* Sides that are 0 or missing are as in `otherwise`. */
struct terminal_size service_terminal_size(const Process__PTY *pty, struct terminal_size otherwise);

void service_list(struct rpc_call *call, const ProtobufCMessage *message);
void service_start(struct rpc_call *call, const ProtobufCMessage *message);
void service_connect(struct rpc_call *call, const ProtobufCMessage *message);
void service_send_input(struct rpc_call *call, const ProtobufCMessage *message);
void service_stream_input(struct rpc_call *call, const ProtobufCMessage *message);
void service_close_stdin(struct rpc_call *call, const ProtobufCMessage *message);

#endif
