/*
 * The key with which a client begins a WebSocket over HTTP/1.1, and what a server answers to it
 * (RFC 6455 section 1.3). It has nothing to do with TLS; SHA-1 is OpenSSL's, which only this folder
 * includes.
 */
#ifndef LIB_TLS_WEBSOCKET_KEY_H
#define LIB_TLS_WEBSOCKET_KEY_H

#include "lib/base.h"

#define WEBSOCKET_KEY_BYTES 24
#define WEBSOCKET_ACCEPT_BYTES 28

/* A fresh Sec-WebSocket-Key (RFC 6455 section 4.1), NUL-terminated. Negative when there is no
 * randomness. */
int websocket_key_make(char ret_key[WEBSOCKET_KEY_BYTES + 1]) NODISCARD;
/* True when `accept` is what a WebSocket server answers to that key. */
bool websocket_key_accepts(struct str key, struct str accept);

#endif
