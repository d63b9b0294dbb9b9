/*
 * process.Process on the wire (contract/envd.md 4.4): Connect, List, Start, Update, SendInput,
 * StreamInput, SendSignal, CloseStdin. Only the process_service*.c files see generated types and
 * RPC calls; below them everything is plain C.
 *
 * rpc_call->service is the struct process_table.
 *
 * Decisions of ours where the contract leaves room or is improved upon:
 * - Any size of a terminal is taken (case 59). At the start a number that is 0 or missing means 80
 *   columns or 24 rows, in a resize it leaves that side as it is. More than 65535 means 65535.
 * - Input to the wrong channel and to a closed or broken stdin is failed_precondition (cases 42,
 *   67).
 * - SendInput answers a client that has ended its direction like any other, unless it must wait for
 *   the process: then the client is taken to have left, and what was not written is dropped.
 * - StreamInput: data before a start is invalid_argument; a further start switches the target (case
 *   44).
 * - Every number in `signal` but 9 and 15 is unimplemented, as in the reference.
 */
#ifndef ENVD_PROCESS_PROCESS_SERVICE_H
#define ENVD_PROCESS_PROCESS_SERVICE_H

#include "envd/rpc/rpc.h"

/* Sorted by path. */
#define PROCESS_SERVICE_METHODS 8
extern const struct rpc_method process_service_methods[PROCESS_SERVICE_METHODS];

#endif
