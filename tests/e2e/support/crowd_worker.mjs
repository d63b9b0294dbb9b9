// Connections that send one text each and then nothing: a thread of their own, so that whoever is measured beside them
// does not wait for their events. workerData: {port, count, texts (taken in turn), persists (each that is closed is
// opened again), reached (Int32Array of one: so many were connected)}.
import net from "node:net";
import { workerData } from "node:worker_threads";

const { port, count, texts, persists, reached } = workerData;

function open(index) {
	const socket = net.connect(port, "127.0.0.1", () => {
		Atomics.add(reached, 0, 1);
		socket.write(texts[index % texts.length]);
	});
	socket.on("error", () => {}).resume();
	if (persists)
		socket.on("close", () => setTimeout(open, 50, index)); // lint-ok: a client's pace
}

for (let index = 0; index < count; index++)
	open(index);
