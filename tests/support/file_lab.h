/*
 * What tests of plain functions on files work with, one of each: memory, room for an error, a
 * folder and the user who runs the test, whose home that folder is.
 */
#ifndef TESTS_SUPPORT_FILE_LAB_H
#define TESTS_SUPPORT_FILE_LAB_H

#include "envd/filesystem/user.h"
#include "lib/arena.h"
#include "tests/support/folder.h"

struct file_lab {
	struct arena arena; /* 256 MiB */
	struct err err;
	struct folder folder;
	struct user self;
};

extern struct file_lab files;

int file_lab_setup(void **state);
int file_lab_teardown(void **state);
/* A path in the folder, in the arena. */
const char *at(const char *relative);
bool am_root(void);

#define FILE_LAB_TEST(name) cmocka_unit_test_setup_teardown(name, file_lab_setup, file_lab_teardown)

#endif
