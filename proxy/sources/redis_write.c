/* Changes of shared records from here: one script each, so that comparing and changing are one. */
#include <hiredis/hiredis.h>

#include "proxy/sources/redis_private.h"

/*
 * KEYS[1]: the record. ARGV: kind, expected execution id ("" = any), JSON, execution id to set (""
 * = none), channel, id. A record keeps its expiry and, when patched, the keys that are not ours.
 */
static const char script[] =
	"local old = redis.call('GET', KEYS[1])\n"
	"local record = nil\n"
	"if old then\n"
	"  local ok, value = pcall(cjson.decode, old)\n"
	"  if ok and type(value) == 'table' then record = value end\n"
	"end\n"
	"local kind = ARGV[1]\n"
	"if kind ~= 'put' and not old then return 'absent' end\n"
	"local text = function(value) if type(value) == 'string' then return value end return '' "
	"end\n"
	"if ARGV[2] ~= '' then\n"
	"  local now = ''\n"
	"  if record then\n"
	"    now = text(record.lifecycle_id)\n"
	"    if now == '' then now = text(record.execution_id) end\n"
	"  end\n"
	"  if now ~= ARGV[2] then return 'conflict' end\n"
	"end\n"
	"if kind == 'delete' then\n"
	"  redis.call('DEL', KEYS[1])\n"
	"else\n"
	"  local new = ARGV[3]\n"
	"  if kind == 'patch' then\n"
	"    if not record then return 'unreadable' end\n"
	"    if record.address then record.orchestrator_ip = record.address end\n"
	"    if record.lifecycle_id then record.execution_id = record.lifecycle_id end\n"
	"    for key, value in pairs(cjson.decode(new)) do\n"
	"      if key == 'address' then key = 'orchestrator_ip' end\n"
	"      if value == cjson.null then value = nil end\n"
	"      record[key] = value\n"
	"    end\n"
	"    record.address = nil\n"
	"    record.lifecycle_id = nil\n"
	"    if ARGV[4] ~= '' then record.execution_id = ARGV[4] end\n"
	"    new = cjson.encode(record)\n"
	"  end\n"
	"  local left = redis.call('PTTL', KEYS[1])\n"
	"  redis.call('SET', KEYS[1], new)\n"
	"  if left > 0 then redis.call('PEXPIRE', KEYS[1], left) end\n"
	"end\n"
	"redis.call('PUBLISH', ARGV[5], ARGV[6])\n"
	"return 'done'\n";

static const char *const kind_names[] = {
	[REDIS_PUT] = "put",
	[REDIS_PATCH] = "patch",
	[REDIS_DELETE] = "delete",
};

static void finish(struct redis_write *write, int status)
{
	write->done(write, status, &write->err);
}

static void fail(struct redis_write *write, enum err_kind kind, const char *message)
{
	finish(write, err_set(&write->err, kind, "%s", message));
}

void redis_write_applied(struct redis_write *write, enum lookup_answer answer)
{
	switch (answer) {
	case LOOKUP_FOUND:
	case LOOKUP_ABSENT:
		finish(write, 0);
		return;
	case LOOKUP_UNAVAILABLE:
	case LOOKUP_OVERLOADED:
		fail(write, ERR_UNAVAILABLE,
		     "the change was made in Redis but could not be read back");
		return;
	}
}

static void on_written(struct redis_command *command, const redisReply *reply)
{
	struct redis_write *write = container_of(command, struct redis_write, command);
	const char *said;

	if (!reply) {
		fail(write, ERR_UNAVAILABLE,
		     "the connection to Redis was lost; the change may be made");
		return;
	}
	said = reply->type == REDIS_REPLY_STRING || reply->type == REDIS_REPLY_ERROR ? reply->str
										     : "";
	if (strcmp(said, "done") == 0) {
		redis_read(write->source, write->id, NULL, write);
	} else if (strcmp(said, "conflict") == 0) {
		fail(write, ERR_FAILED_PRECONDITION, "the sandbox has another lifecycle id");
	} else if (strcmp(said, "absent") == 0) {
		/* What is known of it here is out of date. */
		redis_read(write->source, write->id, NULL, NULL);
		fail(write, ERR_NOT_FOUND, "no such sandbox");
	} else if (strcmp(said, "unreadable") == 0) {
		fail(write, ERR_FAILED_PRECONDITION,
		     "the record in Redis is not a JSON object: PUT it anew");
	} else {
		finish(write,
		       err_set(&write->err, ERR_UNAVAILABLE, "Redis refused the change: %s", said));
	}
}

static void on_offline(struct later *later)
{
	fail(container_of(later, struct redis_write, later), ERR_UNAVAILABLE,
	     "there is no connection to Redis");
}

void redis_write(struct redis_source *source, struct redis_write *write)
{
	char key[REDIS_RECORD_KEY_BYTES];
	const char *const arguments[] = {"EVAL",
					 script,
					 "1",
					 key,
					 kind_names[write->kind],
					 write->expected,
					 write->json ? write->json : "",
					 write->lifecycle_id ? write->lifecycle_id : "",
					 REDIS_CHANGES_CHANNEL,
					 write->id};

	redis_record_key(write->id, key);
	write->source = source;
	write->command.on_reply = on_written;
	later_init(&write->later, on_offline);
	if (source->online)
		redis_link_send(source->commands, &write->command, ARRAY_LENGTH(arguments),
				arguments);
	else
		later_call(source->loop, &write->later);
}
