/* Who reads along with a process: between the output and those who opened or connected to it. */
#include "envd/limits.h"
#include "envd/process/process_internal.h"
#include "lib/log.h"

static struct process_subscriber *subscriber_of(struct output_reader *reader)
{
	return container_of(reader, struct process_subscriber, reader);
}

static int on_reader_output(struct output_reader *reader, enum output_stream stream,
			    struct str bytes)
{
	struct process_subscriber *subscriber = subscriber_of(reader);

	return subscriber->ops->on_output(subscriber, stream, bytes);
}

static size_t reader_queued(struct output_reader *reader)
{
	struct process_subscriber *subscriber = subscriber_of(reader);

	return subscriber->ops->queued(subscriber);
}

void process_fail_subscriber(struct process_subscriber *subscriber, const struct err *err)
{
	output_detach(&subscriber->reader);
	subscriber->process = NULL;
	subscriber->ops->on_failed(subscriber, err);
}

void process_fail_with_deadline(struct process_subscriber *subscriber)
{
	struct err err;

	err_set(&err, ERR_DEADLINE_EXCEEDED, "context deadline exceeded");
	process_fail_subscriber(subscriber, &err);
}

static void on_reader_end(struct output_reader *reader)
{
	struct process_subscriber *subscriber = subscriber_of(reader);
	struct process *process = subscriber->process;

	if (subscriber->is_starter && process->record.timed_out) {
		process_fail_with_deadline(subscriber);
	} else {
		subscriber->process = NULL;
		subscriber->ops->on_ended(subscriber, &process->record);
	}
	process_wake(process);
}

static void on_reader_cut(struct output_reader *reader, bool for_others)
{
	struct process_subscriber *subscriber = subscriber_of(reader);
	struct process *process = subscriber->process;
	struct err err;

	err_set(&err, ERR_RESOURCE_EXHAUSTED, "output was not read for %d seconds while %s waited",
		(for_others ? PROCESS_SUBSCRIBER_STALL_MS : PROCESS_SUBSCRIBER_ALONE_STALL_MS) /
			1000,
		for_others ? "other readers" : "the process");
	++*(for_others ? &process->table->cut_for_others : &process->table->cut_alone);
	log_info("process", "reader cut off for stalling", LOG_I("pid", process->pid),
		 LOG_B("for_others", for_others));
	process_fail_subscriber(subscriber, &err);
	process_wake(process);
}

static const struct output_reader_ops reader_ops = {
	.on_output = on_reader_output,
	.on_end = on_reader_end,
	.on_cut = on_reader_cut,
	.queued = reader_queued,
};
static const struct output_reader_ops reader_ops_without_measure = {
	.on_output = on_reader_output,
	.on_end = on_reader_end,
	.on_cut = on_reader_cut,
};

void process_attach(struct process *process, struct process_subscriber *subscriber)
{
	subscriber->process = process;
	subscriber->reader.ops = subscriber->ops->queued ? &reader_ops
							 : &reader_ops_without_measure;
	output_attach(&process->output, &subscriber->reader);
}

void process_subscribe(struct process *process, struct process_subscriber *subscriber)
{
	assert(process->state == PROCESS_RUNNING || process->state == PROCESS_DRAINING);
	process_attach(process, subscriber);
	process_wake(process);
}

void process_subscriber_drained(struct process_subscriber *subscriber)
{
	struct process *process = subscriber->process;

	if (!process)
		return;
	output_reader_drained(&subscriber->reader);
	process_wake(process);
}

struct process_subscriber *process_find_starter(struct process *process)
{
	struct list_node *node;

	LIST_FOR_EACH (node, &process->output.readers) {
		struct process_subscriber *subscriber = subscriber_of(
			container_of(node, struct output_reader, node));

		if (subscriber->is_starter)
			return subscriber;
	}
	return NULL;
}

uint64_t process_send_keepalives(struct process *process)
{
	uint64_t now = loop_now_ms(process->loop), next = UINT64_MAX;
	struct list_node *node, *following;

	LIST_FOR_EACH_SAFE (node, following, &process->output.readers) {
		struct output_reader *reader = container_of(node, struct output_reader, node);
		struct process_subscriber *subscriber = subscriber_of(reader);

		if (subscriber->keepalive_ms == 0)
			continue;
		if (reader->last_sent_ms + subscriber->keepalive_ms <= now) {
			reader->last_sent_ms = now;
			if (!reader->full)
				subscriber->ops->on_keepalive(subscriber);
		}
		if (reader->last_sent_ms + subscriber->keepalive_ms < next)
			next = reader->last_sent_ms + subscriber->keepalive_ms;
	}
	return next;
}
