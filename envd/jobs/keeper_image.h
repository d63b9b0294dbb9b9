/*
 * The keeper's program (keeper_main.c), which envd carries inside itself: nothing has to be
 * installed beside it, and all keepers share its one page of code.
 */
#ifndef ENVD_JOBS_KEEPER_IMAGE_H
#define ENVD_JOBS_KEEPER_IMAGE_H

#include "lib/base.h"

/* A descriptor to execute it from, close-on-exec; or a negative errno. Blocking. Where the kernel
 * does not let memory be executed, a file in `directory` is made for it. */
int keeper_image_open(const char *directory) NODISCARD;

#endif
