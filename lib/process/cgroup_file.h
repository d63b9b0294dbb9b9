/*
 * The files of a cgroup. They are opened below its directory and closed at once; everything here
 * blocks, any thread.
 */
#ifndef LIB_PROCESS_CGROUP_FILE_H
#define LIB_PROCESS_CGROUP_FILE_H

#include <sys/types.h>

#include "lib/base.h"

/* Never creates. 0 or a negative errno. */
int cgroup_file_write(int directory, const char *name, const char *text);
/* The beginning of the file, as a string; its length or a negative errno. */
ssize_t cgroup_file_read(int directory, const char *name, char *text, size_t size);
/* On a machine without a service manager nobody has switched the controllers on for the cgroups
 * below. One at a time, because each may be refused alone. NULL ends the list. */
void cgroup_file_enable(int directory, const char *const *controllers);

#endif
