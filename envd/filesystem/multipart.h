/*
 * A multipart body (RFC 2046, RFC 7578) read as a stream: bytes in, parts out, in constant memory.
 * The parser keeps the delimiter, at most one delimiter's worth of state, and the header block of
 * the part that begins. It neither knows files nor waits for anything.
 *
 * Line ends are CR LF. Preamble and epilogue are thrown away. A delimiter must be followed by
 * blanks and CR LF or by "--"; a line that only begins like it is content. The body is complete
 * when the closing delimiter was seen: multipart_finish says so, and nothing else does.
 *
 * A part that is quoted-printable is decoded, as by the reference; any other
 * Content-Transfer-Encoding (RFC 7578 deprecates them all) says nothing about what is stored,
 * base64 included.
 */
#ifndef ENVD_FILESYSTEM_MULTIPART_H
#define ENVD_FILESYSTEM_MULTIPART_H

#include "envd/filesystem/quoted_printable.h"
#include "envd/limits.h"
#include "lib/arena.h"
#include "lib/buf.h"
#include "lib/err.h"

/* One part's header; the texts live until on_part returns. */
struct multipart_part {
	struct str name; /* of the form field; empty when it is not form-data */
	struct str filename; /* whole, directories included; {NULL, 0} when not given */
};

/* Each may end the parsing with a negative value and err, which multipart_feed passes on. */
struct multipart_events {
	int (*on_part)(void *user, const struct multipart_part *part, struct err *err);
	int (*on_data)(void *user, const char *data, size_t len, struct err *err);
	int (*on_part_end)(void *user, struct err *err);
};

enum multipart_state {
	MULTIPART_CONTENT, /* preamble, or a part's content */
	MULTIPART_AFTER, /* behind a delimiter */
	MULTIPART_AFTER_BLANK, /* blanks, then CR LF */
	MULTIPART_AFTER_CR,
	MULTIPART_CLOSING, /* one '-' of the two seen */
	MULTIPART_HEADERS,
	MULTIPART_DONE,
};

struct multipart {
	const struct multipart_events *events;
	void *user;
	enum multipart_state state;
	bool in_part; /* false: preamble */
	char delimiter[4 + MULTIPART_BOUNDARY_BYTES_MAX]; /* CR LF "--" boundary */
	size_t delimiter_len;
	size_t matched; /* bytes of the delimiter seen at the end of what was fed ... */
	size_t phantom; /* ... of which the first were not content: the line end before it all */
	struct buf headers;
	bool is_quoted; /* the part is quoted-printable */
	struct quoted_printable quoted;
};

/* Takes the boundary out of a Content-Type. Messages as contract/envd.md 2.6, without prefix; what
 * is wrong is the client's mistake, invalid_argument, here and below. */
int multipart_init(struct multipart *m, struct str content_type,
		   const struct multipart_events *events, void *user, struct err *err) NODISCARD;
void multipart_fini(struct multipart *m);
int multipart_feed(struct multipart *m, const char *data, size_t len, struct err *err) NODISCARD;
/* Fails when the body ended too early. */
int multipart_finish(struct multipart *m, struct err *err) NODISCARD;

#endif
