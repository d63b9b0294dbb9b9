#include "envd/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#define COLUMNS_DEFAULT 80
#define ROWS_DEFAULT 24

void terminal_make_raw(struct terminal *terminal)
{
	struct termios raw;

	if (tcgetattr(STDIN_FILENO, &terminal->saved) < 0)
		return;
	raw = terminal->saved;
	cfmakeraw(&raw);
	terminal->is_raw = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

void terminal_restore(struct terminal *terminal)
{
	if (terminal->is_raw)
		tcsetattr(STDIN_FILENO, TCSANOW, &terminal->saved);
	terminal->is_raw = false;
}

void terminal_size(uint32_t *ret_columns, uint32_t *ret_rows)
{
	struct winsize window;

	*ret_columns = COLUMNS_DEFAULT;
	*ret_rows = ROWS_DEFAULT;
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
		if (ioctl(fd, TIOCGWINSZ, &window) == 0 && window.ws_col && window.ws_row) {
			*ret_columns = window.ws_col;
			*ret_rows = window.ws_row;
			return;
		}
	}
}

size_t terminal_filter(struct terminal_escape *escape, char *keys, size_t len, bool *ret_leaves)
{
	size_t used = 0;

	*ret_leaves = false;
	if (escape->held && len) {
		memmove(keys + 1, keys, len++);
		keys[0] = '~';
		escape->held = false;
	}
	for (size_t i = 0; i < len; i++) {
		if (keys[i] == '~' && !escape->within_line) {
			if (i + 1 == len) {
				escape->held = true;
				break;
			}
			*ret_leaves = keys[i + 1] == '.';
			if (*ret_leaves)
				break;
			if (keys[i + 1] == '~')
				i++;
		}
		escape->within_line = keys[i] != '\r' && keys[i] != '\n';
		keys[used++] = keys[i];
	}
	return used;
}
