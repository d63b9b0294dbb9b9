/* Which commands there are, and what they need of the process before they run. */
#include <signal.h>
#include <unistd.h>

#include "build_info.h"
#include "envd/cli/cli.h"
#include "lib/job.h"
#include "lib/json.h"
#include "lib/log.h"

static const struct cli_command commands[] = {
	{"exec", "run a command in the sandbox, with its output and exit code here", cli_exec},
	{"cp", "copy files to and from the sandbox", cli_copy},
	{"ls", "list a directory of the sandbox", cli_list},
	{"job", "background jobs: run, list, logs, wait, stop, ...", cli_job},
};

static void print_help(int fd)
{
	dprintf(fd, "Looks into a sandbox (sandbox COMMAND -help tells the rest):\n");
	for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
		dprintf(fd, "  %-6s%s\n", commands[i].name, commands[i].summary);
	dprintf(fd, "  -version: which program this is\n"
		    "Which sandbox: ENVD_URL, behind a proxy ENVD_SANDBOX; its access token: "
		    "ENVD_ACCESS_TOKEN.\n"
		    "Exit code: 0 done, 1 refused or not reached, 2 wrong usage; exec and followed "
		    "jobs: the\n"
		    "command's own, 255 when that is not known.\n");
}

int main(int argc, char **argv)
{
	occupy_standard_descriptors();
	/* A reader that goes away is EPIPE, to be looked at. */
	sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
	log_init(LOG_ERROR, LOG_TEXT, STDERR_FILENO);
	job_pool_configure();
	json_init();
	if (argc < 2) {
		print_help(STDERR_FILENO);
		return CLI_EXIT_USAGE;
	}
	for (size_t i = 0; i < ARRAY_LENGTH(commands); i++)
		if (strcmp(commands[i].name, argv[1]) == 0)
			return commands[i].run(argc - 1, argv + 1);
	if (strcmp(argv[1], "-version") == 0 || strcmp(argv[1], "--version") == 0) {
		printf("sandbox %s\ncommit %s\nprofile %s\n", BUILD_VERSION, BUILD_COMMIT,
		       BUILD_PROFILE);
		return EXIT_SUCCESS;
	}
	if (strcmp(argv[1], "help") != 0 && !cli_asks_for_help(argv[1]))
		return cli_usage("%s: there is no such command (sandbox help)", argv[1]);
	print_help(STDOUT_FILENO);
	return EXIT_SUCCESS;
}
