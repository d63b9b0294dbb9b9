/*
 * The four calls of filesystem.Filesystem that watch directories (contract/envd.md 4.6, "Watches"):
 * WatchDir as a stream, and CreateWatcher, GetWatcherEvents, RemoveWatcher for clients that poll.
 *
 * Where the reference goes silent or stops for good, this does not: a directory that is removed or
 * moved ends its watch with not_found after a REMOVE or RENAME of "."; a queue that overflows costs
 * nothing but repeated writes told as one; the kernel's limits are resource_exhausted and named.
 */
#ifndef ENVD_WATCH_WATCH_SERVICE_H
#define ENVD_WATCH_WATCH_SERVICE_H

#include "envd/rpc/rpc.h"

void watch_service_watch(struct rpc_call *call, const ProtobufCMessage *message);
void watch_service_create(struct rpc_call *call, const ProtobufCMessage *message);
void watch_service_get_events(struct rpc_call *call, const ProtobufCMessage *message);
void watch_service_remove(struct rpc_call *call, const ProtobufCMessage *message);

#endif
