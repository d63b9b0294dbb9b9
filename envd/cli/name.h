/*
 * Names of files, jobs and commands on their way to envd and to a terminal. Files have bytes for
 * names, messages have UTF-8: what travels is the shown form of envd/filesystem/path.h, which is
 * one-to-one. People see a form that a shell takes back, and in which nothing that a sandbox says
 * can move a cursor, change colours or turn the direction of the text around.
 *
 * All results are the caller's to free().
 */
#ifndef ENVD_CLI_NAME_H
#define ENVD_CLI_NAME_H

#include "lib/base.h"

char *name_to_wire(const char *bytes);
char *name_from_wire(const char *shown);
/* plain, 'with blanks', $'with\ncontrols or \351 that is no UTF-8'. */
char *name_quote(const char *bytes);
/* The same of a name that came from envd. */
char *name_quote_wire(const char *shown);

/* The length of the character at `text`, a NUL-terminated one: 0 when there is none that a terminal
 * may get: no control, no change of direction, nothing but well-formed UTF-8. */
size_t name_visible(const char *text);

#endif
