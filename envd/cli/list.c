/* `sandbox ls`: one directory, or everything below it. */
#include "envd/cli/call.h"
#include "envd/cli/cli.h"
#include "envd/cli/name.h"
#include "envd/cli/print.h"
#include "envd/limits.h"
#include "proto/filesystem.pb-c.h"

static const char summary[] =
	"ls [options] [PATH]\n\nLists a directory of the sandbox, or one file.\n";

static void add_entry(struct table *t, const Filesystem__EntryInfo *entry, const char *name)
{
	char text[PRINT_TEXT_BYTES];

	table_add(t, "%s", entry->permissions);
	table_add_name(t, entry->owner);
	table_add_name(t, entry->group);
	table_add(t, "%lld", (long long)entry->size);
	table_add(
		t, "%s",
		print_time(entry->modified_time ? entry->modified_time->seconds * 1000 : 0, text));
	if (entry->opt_symlink_target_case ==
	    FILESYSTEM__ENTRY_INFO__OPT_SYMLINK_TARGET_SYMLINK_TARGET) {
		auto_free char *from = name_quote_wire(name);
		auto_free char *to = name_quote_wire(entry->symlink_target);

		table_add(t, "%s -> %s", from, to);
	} else {
		table_add_name(t, name);
	}
}

/* Below a directory that was asked for with -depth, names are relative to it. */
static const char *relative_name(const Filesystem__EntryInfo *entry, struct str root)
{
	struct str path = str_of(entry->path);

	if (root.len > 1 && str_starts_with(path, root) && path.p[root.len] == '/')
		return path.p + root.len + 1;
	return entry->name;
}

static void print_entries(Filesystem__EntryInfo *const *entries, size_t count, struct str root)
{
	struct table t;

	table_init(&t, 6);
	t.right[3] = true;
	for (size_t i = 0; i < count; i++)
		add_entry(&t, entries[i], relative_name(entries[i], root));
	table_print(&t);
	table_fini(&t);
}

/* What is no directory is shown by itself. */
static int show_one(struct target *target, struct arena *arena, char *path,
		    struct str *ret_directory, struct err *err)
{
	Filesystem__StatRequest request = FILESYSTEM__STAT_REQUEST__INIT;
	ProtobufCMessage *message;
	Filesystem__StatResponse *response;
	int status;

	request.path = path;
	status = call_unary(target, "/filesystem.Filesystem/Stat", &request.base,
			    &filesystem__stat_response__descriptor, arena, &message, err);
	if (status < 0)
		return status;
	response = (Filesystem__StatResponse *)message;
	if (!response->entry)
		return err_set(err, ERR_INTERNAL, "an answer without an entry");
	*ret_directory = (struct str){NULL, 0};
	if (response->entry->type == FILESYSTEM__FILE_TYPE__FILE_TYPE_DIRECTORY)
		*ret_directory = str_of(response->entry->path);
	else if (target->json)
		print_json(message);
	else
		print_entries(&response->entry, 1, (struct str){NULL, 0});
	return 0;
}

/* Written as for cp, with a ':', it is the same. */
static int list(struct target *target, const char *given, int64_t depth, struct err *err)
{
	auto_free char *path = name_to_wire(*given == ':' ? given + 1 : given);
	Filesystem__ListDirRequest request = FILESYSTEM__LIST_DIR_REQUEST__INIT;
	ProtobufCMessage *message;
	struct arena arena;
	struct str directory;
	int status;

	arena_init(&arena, RPC_ARENA_BYTES);
	request.path = path;
	request.depth = (uint32_t)depth;
	status = show_one(target, &arena, path, &directory, err);
	if (status == 0 && directory.p) {
		status = call_unary(target, "/filesystem.Filesystem/ListDir", &request.base,
				    &filesystem__list_dir_response__descriptor, &arena, &message,
				    err);
		if (status == 0 && target->json)
			print_json(message);
		else if (status == 0)
			print_entries(((Filesystem__ListDirResponse *)message)->entries,
				      ((Filesystem__ListDirResponse *)message)->n_entries,
				      directory);
	}
	arena_release(&arena);
	return status;
}

int cli_list(int argc, char **argv)
{
	struct target target;
	int64_t depth = 1;
	const struct option options[] = {
		{"depth", OPTION_INT, &depth, "how many levels to show (default 1)"},
		TARGET_OPTIONS(&target),
		{0},
	};
	struct err err;
	int rest, result;

	target_init(&target);
	result = cli_parse_anywhere(options, "sandbox ls", summary, argc, argv, &rest);
	if (result != CLI_GO_ON)
		;
	else if (argc - rest > 1 || depth < 1 || depth > UINT32_MAX)
		result = cli_usage("ls: one path, and a depth of at least 1");
	else if (target_open(&target, &err) < 0 ||
		 list(&target, argc > rest ? argv[rest] : "", depth, &err) < 0)
		result = print_failure(&err);
	else
		result = EXIT_SUCCESS;
	target_fini(&target);
	return result;
}
