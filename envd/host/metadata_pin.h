/*
 * Keeps the way to the host's metadata service open (contract/envd.md 1.9): rules that somebody in
 * the sandbox has made may lead its address elsewhere, so an exception is put at the head of the
 * chains. With iptables, where the image has it. Loop thread only.
 */
#ifndef ENVD_HOST_METADATA_PIN_H
#define ENVD_HOST_METADATA_PIN_H

#include "envd/process/tool.h"

struct metadata_pin;

/* `on_done` comes once, from the loop, unless metadata_pin_cancel comes first: whether the
 * exception is in place. The pin is gone after it. NULL (and no on_done) when nothing can be
 * run. */
struct metadata_pin *metadata_pin_start(struct tools *tools,
					void (*on_done)(void *user, bool is_pinned), void *user);
void metadata_pin_cancel(struct metadata_pin *pin);

#endif
