#include "envd/jobs/job_search.h"

#include <fcntl.h>
#include <unistd.h>

#include "envd/limits.h"

#define BLOCK_BYTES (64 * 1024)
/* Read in one go; then others have a turn. */
#define TURN_BYTES (16 * 1024 * 1024)
#define PLUSES_MAX 4

struct job_searches {
	struct background_job *job;
	struct job_listener listener;
	struct job work;
	struct list_node all; /* those that have waited longest first */
	struct list_node turn; /* those that the pool has */
	bool is_owed, is_telling;
};

/* ---- patterns ---- */

/* What follows a '[', up to behind its end. A backslash means nothing in there; a ']' that comes
 * first, or in a class such as [:alpha:], does not end it. */
static const char *skip_brackets(const char *text)
{
	text += *text == '^';
	text += *text == ']';
	while (*text && *text != ']') {
		if (text[0] == '[' && (text[1] == ':' || text[1] == '.' || text[1] == '=')) {
			const char closing[] = {text[1], ']', '\0'},
				   *end = strstr(text + 2, closing);

			text = end ? end + 2 : text + strlen(text);
		} else {
			text++;
		}
	}
	return text + (*text == ']');
}

int job_pattern_check(const char *text, struct err *err)
{
	/* How often the parts of each group that is open are repeated with +, one within the other,
	 * and what a + here would repeat. Some libraries keep what is repeated twice, and so 2^n
	 * times. */
	unsigned char pluses[JOB_PATTERN_BYTES_MAX + 1] = {0}, last = 0;
	size_t open = 0;

	if (strlen(text) > JOB_PATTERN_BYTES_MAX)
		return err_set(err, ERR_INVALID_ARGUMENT, "the pattern is longer than %d bytes",
			       JOB_PATTERN_BYTES_MAX);
	while (*text) {
		const char *at = text++;

		if (*at == '(') {
			pluses[++open] = last = 0;
			continue;
		}
		if (*at == '{')
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "repetition counts are not taken in patterns; write [{] for "
				       "a brace");
		if (*at == '\\' && *text >= '1' && *text <= '9')
			return err_set(err, ERR_INVALID_ARGUMENT,
				       "back references are not taken in patterns");
		if (*at == '+' && ++last > PLUSES_MAX)
			return err_set(err, ERR_INVALID_ARGUMENT, "at most %d + within each other",
				       PLUSES_MAX);
		if (*at == ')' && open > 0)
			last = pluses[open--];
		else if (!strchr("+*?)", *at))
			last = 0;
		if (*at == '[')
			text = skip_brackets(text);
		else if (*at == '\\' && *text)
			text++;
		if (last > pluses[open])
			pluses[open] = last;
	}
	return 0;
}

int job_pattern_compile(struct job_pattern *pattern, const char *text, struct err *err)
{
	char reason[128];
	int status = regcomp(&pattern->regex, text, REG_EXTENDED | REG_NOSUB);

	if (status != 0) {
		regerror(status, &pattern->regex, reason, sizeof(reason));
		return err_set(err, ERR_INVALID_ARGUMENT, "invalid pattern: %s", reason);
	}
	pattern->is_compiled = true;
	return 0;
}

void job_pattern_fini(struct job_pattern *pattern)
{
	if (pattern->is_compiled)
		regfree(&pattern->regex);
	pattern->is_compiled = false;
}

/* ---- lines ---- */

/* Bytes of the character at the front; 0: it is none. */
static size_t character_length(struct str text)
{
	for (size_t len = 1; len <= text.len && len <= 4; len++)
		if (str_is_utf8((struct str){text.p, len}))
			return len;
	return 0;
}

/* As text, whatever the command's encoding: what is no character in UTF-8 is a '?'. */
static void keep_line(struct job_scan *scan, struct str line, uint64_t offset)
{
	size_t room = sizeof(scan->line) - 1, at = 0;

	while (line.len > 0) {
		size_t len = character_length(line);

		if (at + (len ? len : 1) > room)
			break;
		if (len)
			memcpy(scan->line + at, line.p, len);
		else
			scan->line[at] = '?';
		at += len ? len : 1;
		str_skip(&line, len ? len : 1);
	}
	scan->line[at] = '\0';
	scan->line_offset = offset;
}

/* `line` is followed by a byte that may be overwritten. */
static bool matches(const struct job_pattern *pattern, char *line, size_t len)
{
	char after = line[len];
	bool found;

	for (size_t i = 0; i < len; i++)
		if (!line[i])
			line[i] = ' ';
	line[len] = '\0';
	found = regexec(&pattern->regex, line, 0, NULL, 0) == 0;
	line[len] = after;
	return found;
}

/* Lines of a block that begins with one. *ret_used: what is not looked at again. */
static bool scan_block(struct job_scan *scan, const struct job_pattern *pattern, char *block,
		       size_t len, uint64_t offset, size_t *ret_used)
{
	size_t at = 0;

	*ret_used = 0;
	while (at < len) {
		char *end = memchr(block + at, '\n', len - at);
		size_t line_len = end ? (size_t)(end - block) - at : len - at;
		bool is_whole = end || line_len >= JOB_LINE_BYTES_MAX;

		/* The rest of a very long one counts as a line of its own. */
		line_len = size_min(line_len, JOB_LINE_BYTES_MAX);
		if (matches(pattern, block + at, line_len)) {
			keep_line(scan, (struct str){block + at, line_len}, offset + at);
			return true;
		}
		if (!is_whole)
			return false;
		at += line_len + (end && block + at + line_len == end);
		*ret_used = at;
	}
	return false;
}

/* ---- what is read ---- */

void job_scan_open(struct job_scan_source *source, const struct job_store *store, const char *id)
{
	*source = (struct job_scan_source){.block = xmalloc(BLOCK_BYTES + 1)};
	for (int i = 0; i < JOB_STREAMS; i++)
		source->fds[i] = job_store_open_file(store, id, job_stream_name((enum job_stream)i),
						     O_RDONLY);
}

void job_scan_close(struct job_scan_source *source)
{
	for (int i = 0; i < JOB_STREAMS; i++)
		close_fd(&source->fds[i]);
	free_ptr(&source->block);
}

bool job_scan_is_enough(const struct job_scan_source *source)
{
	return source->scanned >= TURN_BYTES;
}

/* The block that begins at *offset, or where what is kept begins. Most scans want the same one. */
static int load_block(struct job_scan_source *source, int stream, uint64_t *offset)
{
	struct job_extent extent;
	ssize_t got;
	int status;

	if (source->has_block && source->stream == stream && source->offset == *offset)
		return 0;
	source->has_block = false;
	status = job_extent_of(source->fds[stream], &extent);
	if (status < 0)
		return status;
	if (*offset < extent.oldest)
		*offset = extent.oldest;
	got = pread(source->fds[stream], source->block, BLOCK_BYTES, (off_t)*offset);
	if (got < 0)
		return -errno;
	source->stream = stream;
	source->offset = *offset;
	source->len = (size_t)got;
	source->has_block = true;
	return 0;
}

static int scan_stream(struct job_scan *scan, const struct job_pattern *pattern, int stream,
		       struct job_scan_source *source)
{
	do {
		uint64_t *offset = &scan->offsets[stream];
		int status = load_block(source, stream, offset);
		size_t used;

		if (status < 0)
			return status;
		source->scanned += source->len;
		if (scan_block(scan, pattern, source->block, source->len, *offset, &used))
			return 1;
		*offset += used;
		if (source->len < BLOCK_BYTES)
			return 0;
	} while (!job_scan_is_enough(source));
	scan->has_more = true;
	return 0;
}

int job_scan_run(struct job_scan *scan, const struct job_pattern *pattern,
		 struct job_scan_source *source)
{
	int status = 0, i;

	scan->has_more = false;
	for (i = 0; i < JOB_STREAMS && status == 0; i++)
		if (scan->is_wanted[i] && source->fds[i] >= 0)
			status = scan_stream(scan, pattern, i, source);
	return status;
}

/* ---- who waits ---- */

static bool has_news(const struct job_search *search)
{
	return search->is_found || search->is_seen_whole || search->err.kind;
}

/* ---- coming and going ---- */

static void free_search(struct job_search *search)
{
	list_remove(&search->node);
	job_pattern_fini(&search->pattern);
	free(search->text);
	free(search);
}

/* What nobody waits for any more. Not while the pool has it. False when nothing is left at all. */
static bool sweep(struct job_searches *searches)
{
	struct background_job *job = searches->job;
	struct list_node *node, *following;

	if (searches->work.active || searches->is_telling)
		return true;
	LIST_FOR_EACH_SAFE (node, following, &searches->all) {
		struct job_search *search = container_of(node, struct job_search, node);

		if (list_is_empty(&search->waiters))
			free_search(search);
	}
	if (!list_is_empty(&searches->all))
		return true;
	list_remove(&searches->listener.node);
	job->searches = NULL;
	free(searches);
	background_job_release(job);
	return false;
}

void job_search_leave(struct job_search_waiter *waiter)
{
	struct job_search *search = waiter->search;

	if (!search)
		return;
	waiter->search = NULL;
	list_remove(&waiter->listener.node);
	(void)sweep(search->owner);
}

/* ---- in the pool ---- */

static void run_one(struct job_search *search, struct job_scan_source *source)
{
	if (!search->pattern.is_compiled &&
	    job_pattern_compile(&search->pattern, search->text, &search->err) < 0)
		return;
	search->status = job_scan_run(&search->scan, &search->pattern, source);
	search->is_served = true;
}

static void look(struct job *work)
{
	struct job_searches *searches = container_of(work, struct job_searches, work);
	struct job_scan_source source;
	struct list_node *node;

	job_scan_open(&source, &searches->job->table->store, searches->job->record.id);
	LIST_FOR_EACH (node, &searches->turn) {
		struct job_search *search = container_of(node, struct job_search, node);

		if (job_scan_is_enough(&source))
			break;
		if (!has_news(search))
			run_one(search, &source);
	}
	job_scan_close(&source);
}

/* ---- on the loop ---- */

static void start(struct job_searches *searches);

static void settle(struct job_search *search)
{
	search->is_served = false;
	search->is_found = search->status > 0;
	search->is_seen_whole = search->was_ended && !search->scan.has_more;
}

/* Those that had no turn come first the next time, and those that had one last. True when there is
 * more to be looked at right now. */
static bool put_back(struct job_searches *searches)
{
	struct list_node first, last;
	bool has_more = false;

	list_init(&first);
	list_init(&last);
	while (!list_is_empty(&searches->turn)) {
		struct job_search *search = container_of(searches->turn.next, struct job_search,
							 node);
		bool is_served = search->is_served;

		if (is_served)
			settle(search);
		has_more |= !has_news(search) && (!is_served || search->scan.has_more);
		list_remove(&search->node);
		list_append(is_served ? &last : &first, &search->node);
	}
	list_splice(&first, &searches->all);
	list_splice(&first, &last);
	list_splice(&searches->all, &first);
	return has_more;
}

static void tell_all(struct job_searches *searches)
{
	struct list_node *node;

	searches->is_telling = true;
	LIST_FOR_EACH (node, &searches->all) {
		struct job_search *search = container_of(node, struct job_search, node);

		if (has_news(search))
			job_listeners_tell(&search->waiters);
	}
	searches->is_telling = false;
}

static void on_looked(struct job *work)
{
	struct job_searches *searches = container_of(work, struct job_searches, work);
	bool has_more = put_back(searches);

	tell_all(searches);
	if (sweep(searches) && (has_more || searches->is_owed))
		start(searches);
}

/* Of a job that goes on, the next change asks again. */
static void refuse(struct job_searches *searches, bool has_ended)
{
	struct list_node *node;

	list_splice(&searches->all, &searches->turn);
	if (!has_ended)
		return;
	LIST_FOR_EACH (node, &searches->all)
		(void)err_set(&container_of(node, struct job_search, node)->err,
			      ERR_RESOURCE_EXHAUSTED, "too much work is queued");
	tell_all(searches);
	(void)sweep(searches);
}

static void start(struct job_searches *searches)
{
	const struct background_job *job = searches->job;
	bool has_ended = job_state_is_end(job->record.state) || job->is_removed;
	struct list_node *node;

	if (searches->work.active || searches->is_telling) {
		searches->is_owed = true;
		return;
	}
	searches->is_owed = false;
	if (job->table->is_closed)
		return;
	LIST_FOR_EACH (node, &searches->all)
		container_of(node, struct job_search, node)->was_ended = has_ended;
	list_splice(&searches->turn, &searches->all);
	if (job_run(job->table->loop, &searches->work, JOB_FILES, look, on_looked) < 0)
		refuse(searches, has_ended);
}

static void on_change(struct job_listener *listener)
{
	start(container_of(listener, struct job_searches, listener));
}

/* ---- joining ---- */

static struct job_searches *searches_of(struct background_job *job)
{
	struct job_searches *searches = job->searches;

	if (searches)
		return searches;
	job->searches = searches = xcalloc(1, sizeof(*searches));
	searches->job = job;
	list_init(&searches->all);
	list_init(&searches->turn);
	searches->listener.on_change = on_change;
	background_job_hold(job);
	background_job_listen(job, &searches->listener);
	return searches;
}

static struct job_search *find_in(struct list_node *list, const char *text,
				  const bool is_wanted[JOB_STREAMS])
{
	struct list_node *node;

	LIST_FOR_EACH (node, list) {
		struct job_search *search = container_of(node, struct job_search, node);

		if (strcmp(search->text, text) == 0 &&
		    memcmp(search->scan.is_wanted, is_wanted, sizeof(search->scan.is_wanted)) == 0)
			return search;
	}
	return NULL;
}

static struct job_search *add(struct job_searches *searches, const char *text,
			      const bool is_wanted[JOB_STREAMS])
{
	struct job_search *search = xcalloc(1, sizeof(*search));

	search->owner = searches;
	search->text = xstrdup(text);
	memcpy(search->scan.is_wanted, is_wanted, sizeof(search->scan.is_wanted));
	list_init(&search->waiters);
	list_append(&searches->all, &search->node);
	return search;
}

void job_search_join(struct background_job *job, const char *text,
		     const bool is_wanted[JOB_STREAMS], struct job_search_waiter *waiter)
{
	struct job_searches *searches = searches_of(job);
	struct job_search *search = find_in(&searches->all, text, is_wanted);

	if (!search)
		search = find_in(&searches->turn, text, is_wanted);
	if (!search)
		search = add(searches, text, is_wanted);
	waiter->search = search;
	list_append(&search->waiters, &waiter->listener.node);
	if (!has_news(search))
		start(searches);
}
