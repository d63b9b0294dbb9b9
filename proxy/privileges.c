#include "proxy/privileges.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

int privileges_drop(const char *user, int log_fd, struct err *err)
{
	const struct passwd *entry;
	struct stat st;

	errno = 0;
	entry = getpwnam(user);
	if (!entry)
		return err_set(err, ERR_INVALID_ARGUMENT, "there is no user %s", user);
	if (entry->pw_uid == 0)
		return err_set(err, ERR_INVALID_ARGUMENT, "user %s is root", user);
	if (geteuid() == entry->pw_uid && getuid() == entry->pw_uid)
		return 0;
	if (log_fd > 2 && fstat(log_fd, &st) == 0 && S_ISREG(st.st_mode) &&
	    fchown(log_fd, entry->pw_uid, entry->pw_gid) < 0)
		return err_set_sys(err, ERR_PERMISSION_DENIED, errno, "give the access log to %s",
				   user);
	if (initgroups(user, entry->pw_gid) < 0 || setgid(entry->pw_gid) < 0 ||
	    setuid(entry->pw_uid) < 0)
		return err_set_sys(err, ERR_PERMISSION_DENIED, errno, "become user %s", user);
	/* Not believed but seen. */
	if (setuid(0) == 0)
		return err_set(err, ERR_INTERNAL, "root's rights are still there");
	return 0;
}
