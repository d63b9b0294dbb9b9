// Import this before a client library. Some leave a timer of a minute behind after a request that is long over, and
// node would wait for it at the end of the tests. What a test waits for has a connection or a timer of its own.
const setAnyTimeout = globalThis.setTimeout;

globalThis.setTimeout = function setTimeout(callback, ms, ...rest) {
	const timer = setAnyTimeout(callback, ms, ...rest);
	return ms >= 30000 ? timer.unref() : timer;
};
