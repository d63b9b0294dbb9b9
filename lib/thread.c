#include "lib/thread.h"

#include <signal.h>

int thread_start(pthread_t *ret_thread, size_t stack_bytes, void *(*run)(void *user), void *user)
{
	pthread_attr_t attributes;
	sigset_t all, before;
	int status;

	status = -pthread_attr_init(&attributes);
	if (status < 0)
		return status;
	if (stack_bytes)
		status = -pthread_attr_setstacksize(&attributes, stack_bytes);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	if (status == 0)
		status = -pthread_create(ret_thread, &attributes, run, user);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return status;
}
