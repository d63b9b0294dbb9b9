#include "envd/init/hosts_file.h"

#include <arpa/inet.h>

#include "envd/init/text_file.h"

struct address {
	int family;
	unsigned char bytes[sizeof(struct in6_addr)];
};

static bool parse_address(struct str text, struct address *ret_address)
{
	char copy[INET6_ADDRSTRLEN];

	*ret_address = (struct address){0};
	if (text.len >= sizeof(copy))
		return false;
	memcpy(copy, text.p, text.len);
	copy[text.len] = '\0';
	ret_address->family = strchr(copy, ':') ? AF_INET6 : AF_INET;
	return inet_pton(ret_address->family, copy, ret_address->bytes) == 1;
}

/* Cuts the next word off *rest; false when there is none. */
static bool next_word(struct str *rest, struct str *ret_word)
{
	while (rest->len && (*rest->p == ' ' || *rest->p == '\t' || *rest->p == '\r'))
		*rest = (struct str){rest->p + 1, rest->len - 1};
	*ret_word = (struct str){rest->p, 0};
	while (ret_word->len < rest->len && !strchr(" \t\r", rest->p[ret_word->len]))
		ret_word->len++;
	*rest = (struct str){rest->p + ret_word->len, rest->len - ret_word->len};
	return ret_word->len > 0;
}

struct line {
	struct str whole; /* without its newline */
	struct str entry; /* without its comment */
	struct str words; /* of the entry, behind the address */
	struct address address;
	bool has_address;
	size_t names, matches;
};

static struct line read_line(struct str whole, struct str name)
{
	const char *comment = memchr(whole.p, '#', whole.len);
	struct line line = {.whole = whole, .entry = whole};
	struct str rest, word;

	if (comment)
		line.entry.len = (size_t)(comment - whole.p);
	rest = line.entry;
	line.has_address = next_word(&rest, &word) && parse_address(word, &line.address);
	line.words = rest;
	while (line.has_address && next_word(&rest, &word)) {
		line.names++;
		line.matches += str_equal_nocase(word, name);
	}
	return line;
}

static int put(struct buf *out, struct str piece)
{
	return buf_append(out, piece.p, piece.len);
}

/* The line without the name; nothing but its comment when it had no other. */
static int put_without(struct buf *out, const struct line *line, struct str name)
{
	const char *end = line->whole.p + line->whole.len;
	struct str rest = line->words, word;
	const char *from = line->whole.p;
	int status = 0;

	if (line->names == line->matches) {
		from = line->entry.p + line->entry.len;
		if (from == end)
			return 0;
	} else {
		for (const char *before = rest.p; next_word(&rest, &word); before = rest.p) {
			if (!str_equal_nocase(word, name))
				continue;
			/* With the blanks in front of it. */
			status = put(out, (struct str){from, (size_t)(before - from)});
			if (status < 0)
				return status;
			from = rest.p;
		}
	}
	status = put(out, (struct str){from, (size_t)(end - from)});
	return status < 0 ? status : put(out, STR("\n"));
}

static int put_with(struct buf *out, const struct line *line, struct str name)
{
	const char *end = line->whole.p + line->whole.len;
	struct str entry = line->entry;
	int status;

	while (entry.len && strchr(" \t\r", entry.p[entry.len - 1]))
		entry.len--;
	status = put(out, entry);
	if (status == 0)
		status = put(out, STR(" "));
	if (status == 0)
		status = put(out, name);
	if (status == 0)
		status = put(out, (struct str){entry.p + entry.len,
					       (size_t)(end - entry.p) - entry.len});
	return status < 0 ? status : put(out, STR("\n"));
}

static bool cut_line(struct str *rest, struct str name, struct line *ret_line)
{
	const char *newline;
	size_t len;

	if (!rest->len)
		return false;
	newline = memchr(rest->p, '\n', rest->len);
	len = newline ? (size_t)(newline - rest->p) : rest->len;
	*ret_line = read_line((struct str){rest->p, len}, name);
	*rest = (struct str){rest->p + len + (newline != NULL),
			     rest->len - len - (newline != NULL)};
	return true;
}

int hosts_file_edit(struct str text, const char *address_text, const char *name_text,
		    struct buf *out)
{
	struct str name = str_of(name_text), rest = text;
	size_t same = 0, other = 0;
	struct address address;
	struct line line;
	char added[INET6_ADDRSTRLEN + 64];
	bool is_there = false;
	int status = 0, len;

	if (!parse_address(str_of(address_text), &address))
		return -EINVAL;
	while (cut_line(&rest, name, &line)) {
		if (!line.has_address || line.address.family != address.family || !line.matches)
			continue;
		if (memcmp(&line.address, &address, sizeof(address)) == 0)
			same++;
		else
			other++;
	}
	if (same && !other)
		return 0;
	rest = text;
	while (status == 0 && cut_line(&rest, name, &line)) {
		bool is_same = line.has_address &&
			       memcmp(&line.address, &address, sizeof(address)) == 0;

		if (is_same && line.matches)
			is_there = true;
		if (is_same && !line.matches && !same && !is_there) {
			is_there = true;
			status = put_with(out, &line, name);
		} else if (line.has_address && !is_same && line.matches &&
			   line.address.family == address.family) {
			status = put_without(out, &line, name);
		} else {
			status = put(out, line.whole);
			if (status == 0)
				status = put(out, STR("\n"));
		}
	}
	if (status == 0 && !is_there) {
		len = snprintf(added, sizeof(added), "%-16s %s\n", address_text, name_text);
		if (len < 0 || len >= (int)sizeof(added))
			return -EINVAL;
		status = buf_append(out, added, (size_t)len);
	}
	return status < 0 ? status : 1;
}

int hosts_file_set(const char *path, const char *address, const char *name)
{
	auto_free char *text = NULL;
	struct buf edited;
	size_t len;
	int status = text_file_read(path, &text, &len);

	if (status < 0)
		return status;
	buf_init(&edited, TEXT_FILE_BYTES_MAX + 1024);
	status = hosts_file_edit((struct str){text, len}, address, name, &edited);
	if (status > 0)
		status = text_file_replace(path, buf_data(&edited), buf_length(&edited));
	buf_fini(&edited);
	return status;
}
