/*
 * The duties of process 1.
 *
 * In a container the runtime has prepared everything. envd goes before what it starts, if it may
 * (machine_take_precedence), and at the end other processes get SIGTERM, time, and SIGKILL
 * (machine_end_others) before it exits and the kernel takes the rest. Reaping is the reaper's
 * (lib/process/reaper.h).
 *
 * In a virtual machine nobody was there before: /proc is not mounted. Then envd makes a usable
 * system of the bare kernel (machine_boot), and switches the machine off when it ends, because a
 * kernel whose process 1 exits panics. Whether the root file system can be written, and which
 * modules are loaded, is decided by the kernel's command line and by whoever built the image.
 *
 * Everything here blocks and belongs to the time before and after the loop. What fails is logged
 * and otherwise left alone: an agent with half a system can still say what is wrong with it.
 */
#ifndef ENVD_BOOT_MACHINE_H
#define ENVD_BOOT_MACHINE_H

#include "lib/base.h"

/* Process 1, and nobody has mounted /proc: a virtual machine that is ours to set up. */
bool machine_is_bare(void);
/* Mounts proc, sysfs, devtmpfs, devpts, shm, run, tmp and cgroup2 where they are missing; console
 * as standard descriptors where there are none; host name, loopback interface, limits; priority
 * over everything that will be started; Ctrl-Alt-Del becomes SIGINT. */
void machine_boot(void);
/* Before whatever will be started here, for processor, disk and memory, as far as it is allowed:
 * what a service manager would have arranged. For process 1, which has none; part of
 * machine_boot. */
void machine_take_precedence(void);
/* Process 1 only. SIGTERM to every process, SIGKILL to those that are there after `grace_ms`;
 * returns when no child is left, or a moment after the SIGKILL. */
void machine_end_others(unsigned grace_ms);
/* Ends all others, writes out what file systems hold back, and switches off, or restarts. A guest
 * whose kernel was told to restart through the keyboard controller ("reboot=k") always restarts:
 * that is the only exit its hypervisor knows. */
_Noreturn void machine_power_off(bool restart);

/* ---- the parts that decide something ---- */

/* Whether the kernel's command line asks for restarts through the keyboard controller. */
bool machine_restarts_by_keyboard(struct str command_line);
/* The host name in the text of /etc/hostname: the first line that is neither empty nor a comment.
 * {NULL, 0} when there is none that the kernel would take. */
struct str machine_parse_host_name(struct str text);

#endif
