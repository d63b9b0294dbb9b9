/*
 * One upload at a time, fed by hand into envd/filesystem/receive, in a folder of its own.
 */
#ifndef TESTS_SUPPORT_INTAKE_H
#define TESTS_SUPPORT_INTAKE_H

#include "envd/filesystem/receive.h"
#include "tests/support/folder.h"

/* What one test works with; intake_setup empties it. */
struct intake {
	struct arena arena;
	struct err err;
	struct folder folder;
	struct sandbox sandbox;
	struct receive_request request;
	struct receive receive;
};

extern struct intake intake;

bool intake_am_root(void);
const char *intake_at(const char *relative);
void intake_write_bytes(const char *path, const void *data, size_t len);
void intake_write_text(const char *relative, const char *text);
int intake_setup(void **state);
int intake_teardown(void **state);
/* One whole request, fed in pieces. */
int intake_post_pieces(const char *path, const void *body, size_t len, size_t piece);
int intake_post(const char *path, const char *body);
void intake_check_bytes(const char *path, const void *want, size_t len);
void intake_check_text(const char *relative, const char *want);
bool intake_exists(const char *relative);
size_t intake_count_entries(const char *relative);
void intake_mount_small(const char *options);
void intake_check_refused(enum err_kind kind, const char *message);
int intake_before_all(void **state);
int intake_after_all(void **state);

#endif
