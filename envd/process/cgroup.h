/*
 * Where commands live: three cgroups made at start-up (contract/envd.md 1.5), and below `user` and
 * `ptys` one child cgroup for each command, so that a kill reaches everything the command started,
 * also what left its session. Without a writable cgroup v2 every call here is a quiet no-op: the
 * commands run, isolation is off (cases.md, case 78).
 *
 * cgroups_init and cgroups_fini block and belong to start and end. Everything else, if it does not
 * say otherwise, blocks too and is for jobs; any thread. A command's cgroup can be removed once
 * nobody lives in it: cgroup_remove_later remembers it, cgroups_sweep removes many in one go, and
 * those that are still inhabited are tried again with every later sweep.
 */
#ifndef ENVD_PROCESS_CGROUP_H
#define ENVD_PROCESS_CGROUP_H

#include <pthread.h>
#include <stdatomic.h>

#include "lib/base.h"
#include "lib/list.h"

enum cgroup_kind { CGROUP_NONE, CGROUP_USER, CGROUP_PTY, CGROUP_SOCAT };
#define CGROUP_KINDS 4

struct cgroups {
	bool available;
	char *root; /* the tree's path; NULL when not available */
	int directories[CGROUP_KINDS]; /* O_PATH; -1 for CGROUP_NONE and when not available */
	atomic_uint_fast64_t next_number;
	uint64_t boot_mark; /* part of every name, so that a restarted agent meets no leftovers */
	pthread_mutex_t lock; /* for the lists; never held during a system call */
	struct list_node finished; /* to be removed */
	struct list_node lingering; /* still inhabited when last tried, oldest first */
	size_t remembered;
	atomic_uint_fast64_t out_of_memory_kills[CGROUP_KINDS]; /* last seen */
};

/* A command's own cgroup. {CGROUP_NONE} means that it has none. */
struct cgroup_place {
	enum cgroup_kind kind;
	uint64_t number;
	/* Not 0: one that an agent before this one may have made, by that agent's mark. It is left
	 * alone at the start of an agent; whoever remembers it removes it. */
	uint64_t lasting_mark;
};

/* 0: none. */
struct cgroup_limits {
	uint64_t memory_bytes; /* who goes beyond is killed with all others in the cgroup */
	uint32_t pids, cpu_millis;
};

#define CGROUP_LIMIT_MEMORY 1U
#define CGROUP_LIMIT_PIDS 2U
#define CGROUP_LIMIT_CPU 4U

/* `root`: the cgroup v2 mount, NULL or empty for /sys/fs/cgroup; `enabled` false makes a no-op.
 * Problems are logged once and never returned: there is always a usable object. */
void cgroups_init(struct cgroups *cgroups, const char *root, bool enabled);
void cgroups_fini(struct cgroups *cgroups);

/* Makes a cgroup for one command. *ret_fd is its directory, for the clone; -1 with {CGROUP_NONE}
 * when there is none to be had, because cgroups are not available or somebody took them away.
 * -ENOMEM, -EAGAIN, -EMFILE, -ENFILE: limits are reached, and no command may begin outside of
 * them. */
int cgroup_create(struct cgroups *cgroups, enum cgroup_kind kind, struct cgroup_place *ret_place,
		  int *ret_fd) NODISCARD;
/* The same for one that is to outlive this agent. */
int cgroup_create_lasting(struct cgroups *cgroups, enum cgroup_kind kind,
			  struct cgroup_place *ret_place, int *ret_fd) NODISCARD;
/* Its directory; a negative errno when it is gone. */
int cgroup_open(struct cgroups *cgroups, struct cgroup_place place) NODISCARD;
/* Answers with those (CGROUP_LIMIT_...) that could not be put in force. */
unsigned cgroup_limit(struct cgroups *cgroups, struct cgroup_place place,
		      const struct cgroup_limits *limits);
/* Kills everybody in it, atomically where the kernel can. 0, -ENOENT without cgroup. */
int cgroup_kill(struct cgroups *cgroups, struct cgroup_place place);
/* Whether everything in it stands still, by its own freezing or a parent's. */
bool cgroup_is_frozen(struct cgroups *cgroups, struct cgroup_place place);
/* For the next sweep. Does not block. */
void cgroup_remove_later(struct cgroups *cgroups, struct cgroup_place place);
void cgroups_sweep(struct cgroups *cgroups);
/* Removes it now, if nobody lives in it. */
bool cgroup_remove(struct cgroups *cgroups, struct cgroup_place place);
/* True when the kernel's OOM killer struck in the command's cgroup; where memory is accounted only
 * for the kind as a whole, when it struck there since the last time this was asked. */
bool cgroup_saw_out_of_memory(struct cgroups *cgroups, struct cgroup_place place);

#endif
