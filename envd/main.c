/* How envd starts: as what (a service, process 1 of a container or machine), and with which
 * flags. */
#include <arpa/inet.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "build_info.h"
#include "envd/app.h"
#include "envd/filesystem/user.h"
#include "envd/host/metadata.h"
#include "envd/forward/forwarder.h"
#include "envd/boot/machine.h"
#include "envd/init/run_files.h"
#include "envd/limits.h"
#include "lib/log.h"
#include "lib/options.h"

#define USER_ARENA_BYTES (4 * 1024 * 1024)
#define EXIT_USAGE 2

#if defined(__GLIBC__)
#define LIBC_NAME "glibc"
#else
#define LIBC_NAME "musl"
#endif

static const char summary[] =
	"The agent inside a sandbox: starts processes and terminals, reads and writes files, and\n"
	"serves them over HTTP. The program `sandbox` is the client for people.\n";

struct arguments {
	bool not_firecracker, version, commit, build_info, no_cgroups, verbose, standalone;
	int64_t port, jobs_max, jobs_age, jobs_bytes;
	const char *address, *forward_address, *cgroup_root, *watch_helper, *jobs_directory;
	const char *kill_scope, *log_level;
};

static bool parse_level(const char *text, enum log_level *ret_level)
{
	static const char *const names[] = {[LOG_ERROR] = "error",
					    [LOG_WARN] = "warn",
					    [LOG_INFO] = "info",
					    [LOG_DEBUG] = "debug"};

	for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
		if (strcmp(text, names[i]) == 0) {
			*ret_level = (enum log_level)i;
			return true;
		}
	}
	return false;
}

/* Standalone: for people, on stderr. -verbose: for the collector, on stdout. Otherwise only what
 * somebody should look at, on stderr (contract/envd.md 1.8). */
static bool open_log(const struct arguments *arguments)
{
	enum log_level level = arguments->standalone || arguments->verbose ? LOG_INFO : LOG_WARN;

	if (arguments->log_level && !parse_level(arguments->log_level, &level))
		return false;
	log_init(level, arguments->standalone ? LOG_TEXT : LOG_JSON,
		 arguments->verbose && !arguments->standalone ? STDOUT_FILENO : STDERR_FILENO);
	return true;
}

static bool is_ip_address(const char *text)
{
	struct in6_addr address;

	return inet_pton(AF_INET, text, &address) == 1 || inet_pton(AF_INET6, text, &address) == 1;
}

static int refuse_value(const char *name, const char *value)
{
	dprintf(STDERR_FILENO, "invalid value \"%s\" for flag -%s\n", value, name);
	return EXIT_USAGE;
}

/* Many connections and many processes need many descriptors. */
static void raise_descriptor_limit(struct app_config *config)
{
	struct rlimit raised;

	if (getrlimit(RLIMIT_NOFILE, &config->nofile) < 0)
		return;
	raised = config->nofile;
	raised.rlim_cur = raised.rlim_max;
	config->set_nofile = raised.rlim_cur != config->nofile.rlim_cur &&
			     setrlimit(RLIMIT_NOFILE, &raised) == 0;
}

static void write_run_files(const struct app_config *config)
{
	int status = run_files_write(RUN_FILES_DIRECTORY, ".E2B_SANDBOX",
				     config->is_firecracker ? "true" : "false", 0444);

	if (status < 0)
		dprintf(STDERR_FILENO, "%s/.E2B_SANDBOX: %s\n", RUN_FILES_DIRECTORY,
			errno_text(status));
}

/* Its own user by name, the number when it has none; free() it. */
static char *find_own_user(void)
{
	struct user_names *names;
	struct arena arena;
	char *name;

	arena_init(&arena, USER_ARENA_BYTES);
	names = user_names_load(&arena);
	name = xstrdup(names ? user_names_user(names, geteuid()) : "root");
	arena_release(&arena);
	return name;
}

static void print_welcome(const struct app *app)
{
	unsigned port = app_port(app);
	char address[64];

	/* As URLs have it. */
	snprintf(address, sizeof(address), strchr(app->config.address, ':') ? "[%s]" : "%s",
		 app->config.address);

	dprintf(STDOUT_FILENO,
		"envd %s (protocol %s) listens on http://%s:%u and acts as '%s'.\n"
		"For e2b clients:\n"
		"  export E2B_DEBUG=true E2B_SANDBOX_URL=http://%s:%u\n"
		"For novita-sandbox clients:\n"
		"  export NOVITA_DEBUG=true NOVITA_SANDBOX_URL=http://%s:%u\n"
		"For the program sandbox (sandbox help):\n"
		"  export ENVD_URL=http://%s:%u\n",
		BUILD_VERSION, ENVD_PROTOCOL_VERSION, address, port, app->sandbox.default_user,
		address, port, address, port, address, port);
	if (port == ENVD_PORT_DEFAULT)
		dprintf(STDOUT_FILENO,
			"Old clients know the debug variables alone; they look for port %u, "
			"which this is.\n",
			ENVD_PORT_DEFAULT);
	else
		dprintf(STDOUT_FILENO,
			"Old clients know the debug variables alone; they look for port %u, "
			"which this is not.\n",
			ENVD_PORT_DEFAULT);
}

static int report_listen(const struct app *app, const struct err *err)
{
	dprintf(STDERR_FILENO, "server stopped: %s\n", err->message);
	if (app->config.is_standalone && err->sys == EADDRINUSE)
		dprintf(STDERR_FILENO,
			"Port %u is in use, perhaps by another envd. Choose another one with -port "
			"(0: any that is free).\n",
			app->config.port);
	if (app->config.is_standalone && err->sys == EACCES)
		dprintf(STDERR_FILENO,
			"Low ports are for root. Choose another one with -port (0: any that is "
			"free).\n");
	return EXIT_FAILURE;
}

/* What a killed envd had just cloned holds its port for the moment until it is what it was cloned
 * for. */
static int open_app(struct app *app, struct err *err)
{
	int64_t until = monotonic_ms() + START_AGAIN_MS;
	int status;

	do {
		status = app_open(app, err);
	} while (status < 0 && err->sys == EADDRINUSE && monotonic_ms() < until &&
		 usleep(START_AGAIN_PAUSE_US) == 0);
	return status;
}

static int run(const struct app_config *config)
{
	struct app *app = xcalloc(1, sizeof(*app));
	int result = EXIT_SUCCESS;
	bool restart;
	struct err err;

	app_init(app, config);
	if (open_app(app, &err) < 0) {
		result = report_listen(app, &err);
	} else {
		log_info("envd", "listening", LOG_S("address", config->address),
			 LOG_I("port", app_port(app)), LOG_S("version", BUILD_VERSION),
			 LOG_S("protocol", ENVD_PROTOCOL_VERSION));
		if (config->is_standalone)
			print_welcome(app);
		app_run(app);
	}
	restart = app->restart;
	app_fini(app);
	free(app);
	if (config->is_machine)
		machine_power_off(restart);
	machine_end_others(MACHINE_STOP_GRACE_MS);
	return result;
}

static int refuse_number(const char *name, int64_t value)
{
	dprintf(STDERR_FILENO, "invalid value \"%lld\" for flag -%s\n", (long long)value, name);
	return EXIT_USAGE;
}

/* Such as the name of a command. */
static int refuse_word(const char *word)
{
	dprintf(STDERR_FILENO,
		"envd %s: envd takes options alone (envd -help); the command is \"sandbox %s\"\n",
		word, word);
	return EXIT_USAGE;
}

/* What is answered without starting anything; `version` goes first (contract/envd.md 1.1). */
static bool print_information(const struct arguments *arguments)
{
	if (arguments->version)
		puts(ENVD_PROTOCOL_VERSION);
	else if (arguments->commit)
		puts(BUILD_COMMIT);
	else if (arguments->build_info)
		printf("envd %s\nprotocol %s\ncommit %s\nlibc %s\nprofile %s\n", BUILD_VERSION,
		       ENVD_PROTOCOL_VERSION, BUILD_COMMIT, LIBC_NAME, BUILD_PROFILE);
	else
		return false;
	return true;
}

static enum options_result parse_arguments(struct arguments *arguments, int argc, char **argv)
{
	const struct option options[] = {
		{"isnotfc", OPTION_BOOL, &arguments->not_firecracker,
		 "not in a Firecracker microVM: never ask the host's metadata service"},
		{"version", OPTION_BOOL, &arguments->version,
		 "print the protocol version and exit"},
		{"commit", OPTION_BOOL, &arguments->commit,
		 "print the commit this was built from and exit"},
		{"build-info", OPTION_BOOL, &arguments->build_info,
		 "print this program's own version and how it was built, and exit"},
		{"port", OPTION_INT, &arguments->port, "port to listen on (default 49983; 0: any)"},
		{"address", OPTION_STRING, &arguments->address,
		 "IP address to listen on (default 0.0.0.0; 127.0.0.1 with -standalone)"},
		{"forward-address", OPTION_STRING, &arguments->forward_address,
		 "where servers that listen on localhost are made reachable: an address of this "
		 "machine\n"
		 "    \t(default 169.254.0.21; nowhere with -standalone), or none"},
		{"cgroup-root", OPTION_STRING, &arguments->cgroup_root,
		 "cgroup v2 mount for commands (default /sys/fs/cgroup)"},
		{"no-cgroups", OPTION_BOOL, &arguments->no_cgroups, "leave cgroups alone"},
		{"watch-helper", OPTION_STRING, &arguments->watch_helper,
		 "the program that watches directories (default envd-watch beside envd, or in "
		 "/usr/bin)"},
		{"jobs-dir", OPTION_STRING, &arguments->jobs_directory,
		 "where background jobs and their output are kept, for this envd alone (default\n"
		 "    \t/var/lib/envd/jobs; for an ordinary user envd/jobs in XDG_STATE_HOME, "
		 "which is\n"
		 "    \t~/.local/state unless it is set; without a home /tmp/envd-UID/jobs)"},
		{"jobs-max", OPTION_INT, &arguments->jobs_max,
		 "how many jobs that have ended are kept (default 10000)"},
		{"jobs-max-age", OPTION_INT, &arguments->jobs_age,
		 "for how many seconds they are (default 604800, a week)"},
		{"jobs-max-bytes", OPTION_INT, &arguments->jobs_bytes,
		 "with how many bytes of output in all (default 8589934592, 8 GiB)"},
		{"kill-scope", OPTION_STRING, &arguments->kill_scope,
		 "what SIGKILL and timeouts reach: all (default) or leader"},
		{"verbose", OPTION_BOOL, &arguments->verbose,
		 "write the log to stdout, JSON lines (else to stderr)"},
		{"log-level", OPTION_STRING, &arguments->log_level,
		 "error, warn, info or debug (default warn; info with -verbose or -standalone)"},
		{"standalone", OPTION_BOOL, &arguments->standalone,
		 "for debugging on this machine: no host services, readable log on stderr;\n"
		 "    \tas an ordinary user, commands run as that user"},
		{0},
	};
	int rest;

	return options_parse(options, argv[0], summary, argc, argv, &rest);
}

/* By the rules of the XDG base directories where /var is not ours; free() it. */
static char *choose_jobs_directory(const struct arguments *arguments)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	struct stat st;
	char path[4096];

	if (arguments->jobs_directory && *arguments->jobs_directory)
		return xstrdup(arguments->jobs_directory);
	if (geteuid() == 0)
		return xstrdup(JOBS_DIRECTORY_DEFAULT);
	if (state && *state == '/')
		snprintf(path, sizeof(path), "%s/envd/jobs", state);
	else if (home && *home == '/' && stat(home, &st) == 0)
		snprintf(path, sizeof(path), "%s/.local/state/envd/jobs", home);
	else
		snprintf(path, sizeof(path), "/tmp/envd-%u/jobs", geteuid());
	return xstrdup(path);
}

/* What a write cannot do is an error of that write, also where files may not grow beyond
 * RLIMIT_FSIZE. */
static void ignore_signals_of_writes(void)
{
	struct sigaction action = {.sa_handler = SIG_IGN};

	sigaction(SIGPIPE, &action, NULL);
	sigaction(SIGXFSZ, &action, NULL);
}

static int start(const struct arguments *arguments)
{
	struct app_config config = {
		.port = (unsigned)arguments->port,
		.cgroup_root = arguments->cgroup_root,
		.no_cgroups = arguments->no_cgroups,
		.watch_helper = arguments->watch_helper,
		.jobs_max = (uint64_t)arguments->jobs_max,
		.jobs_age_s_max = (uint64_t)arguments->jobs_age,
		.jobs_bytes_max = (uint64_t)arguments->jobs_bytes,
		.kill_scope_leader = strcmp(arguments->kill_scope, "leader") == 0,
		.is_standalone = arguments->standalone,
		.is_firecracker = !arguments->not_firecracker && !arguments->standalone,
		.is_machine = machine_is_bare(),
	};
	auto_free char *user_name = NULL, *jobs_directory = choose_jobs_directory(arguments);

	config.jobs_directory = jobs_directory;
	config.metadata_address = (struct sockaddr_in){.sin_family = AF_INET,
						       .sin_port = htons(METADATA_PORT)};
	inet_pton(AF_INET, METADATA_ADDRESS, &config.metadata_address.sin_addr);
	ignore_signals_of_writes();
	if (config.is_machine)
		machine_boot();
	else if (getpid() == 1 && !config.is_standalone)
		machine_take_precedence();
	raise_descriptor_limit(&config);
	config.address = arguments->address;
	if (!config.address)
		config.address = config.is_standalone ? "127.0.0.1" : "0.0.0.0";
	config.uid = geteuid();
	config.only_that_user = config.uid != 0;
	if (config.is_standalone || config.only_that_user)
		config.user_name = user_name = find_own_user();
	if (!config.is_standalone) {
		if (config.only_that_user)
			log_warn("envd",
				 "not started by root: it acts as no other user; -standalone is "
				 "for that",
				 LOG_S("user", config.user_name));
		write_run_files(&config);
		config.forward_address = FORWARDER_ADDRESS_DEFAULT;
	}
	if (arguments->forward_address)
		config.forward_address = arguments->forward_address;
	if (config.forward_address && strcmp(config.forward_address, "none") == 0)
		config.forward_address = NULL;
	return run(&config);
}

int main(int argc, char **argv)
{
	struct arguments arguments = {
		.port = ENVD_PORT_DEFAULT,
		.cgroup_root = "",
		.kill_scope = "all",
		.jobs_max = JOBS_ENDED_MAX,
		.jobs_age = JOBS_ENDED_AGE_S,
		.jobs_bytes = JOBS_ENDED_BYTES,
	};

	occupy_standard_descriptors();
	/* Process 1 gets words of the kernel's command line that are none of ours. */
	if (argc > 1 && argv[1][0] != '-' && getpid() != 1)
		return refuse_word(argv[1]);
	switch (parse_arguments(&arguments, argc, argv)) {
	case OPTIONS_OK:
		break;
	case OPTIONS_HELP:
		return EXIT_SUCCESS;
	case OPTIONS_BAD:
		return EXIT_USAGE;
	}
	if (print_information(&arguments))
		return EXIT_SUCCESS;
	if (!open_log(&arguments))
		return refuse_value("log-level", arguments.log_level);
	if (strcmp(arguments.kill_scope, "all") != 0 && strcmp(arguments.kill_scope, "leader") != 0)
		return refuse_value("kill-scope", arguments.kill_scope);
	if (arguments.address && !is_ip_address(arguments.address))
		return refuse_value("address", arguments.address);
	if (arguments.forward_address && strcmp(arguments.forward_address, "none") != 0 &&
	    !forwarder_parse_address(arguments.forward_address, &(struct forwarder_settings){0}))
		return refuse_value("forward-address", arguments.forward_address);
	if (arguments.jobs_max < 1)
		return refuse_number("jobs-max", arguments.jobs_max);
	if (arguments.jobs_age < 1 || arguments.jobs_age > JOBS_AGE_S_MAX)
		return refuse_number("jobs-max-age", arguments.jobs_age);
	if (arguments.jobs_bytes < 1)
		return refuse_number("jobs-max-bytes", arguments.jobs_bytes);
	if (arguments.port < 0 || arguments.port > 65535) {
		dprintf(STDERR_FILENO, "server stopped: listen tcp: address %lld: invalid port\n",
			(long long)arguments.port);
		return EXIT_FAILURE;
	}
	return start(&arguments);
}
