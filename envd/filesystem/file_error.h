/*
 * What an errno of a call on files means to a client: the one table of the files' and the
 * filesystem service's errors, on top of err_kind_from_errno. Mistakes of the client and states of
 * the world have a kind of their own; internal is what nobody outside can do anything about (a
 * broken disk).
 */
#ifndef ENVD_FILESYSTEM_FILE_ERROR_H
#define ENVD_FILESYSTEM_FILE_ERROR_H

#include "lib/err.h"

/* Either sign. */
enum err_kind file_error_kind(int sys);
/* The same of a call on that open file. Virtual files refuse what is written, or reading at that
 * place, with whatever errno occurs to their driver: there it says no, and nothing is broken. */
enum err_kind file_error_kind_of(int fd, int sys);
/* Whether the file is made up when it is read: its size is 0, or a page whatever the content. */
bool file_is_virtual(int fd);

#endif
