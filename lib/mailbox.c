#include "lib/mailbox.h"

#include "lib/loop.h"

static struct message *take(struct mailbox *mailbox)
{
	struct message *message = NULL;

	pthread_mutex_lock(&mailbox->lock);
	if (!list_is_empty(&mailbox->delivering)) {
		message = container_of(mailbox->delivering.next, struct message, node);
		list_remove(&message->node);
	}
	pthread_mutex_unlock(&mailbox->lock);
	return message;
}

static void on_async(uv_async_t *async)
{
	struct mailbox *mailbox = container_of(async, struct mailbox, async);
	struct message *message;

	pthread_mutex_lock(&mailbox->lock);
	list_splice(&mailbox->delivering, &mailbox->posted);
	pthread_mutex_unlock(&mailbox->lock);
	/* One after the other: a function may close any message of these. */
	while ((message = take(mailbox)))
		message->fn(message);
}

void message_open(struct message *message, struct loop *loop, void (*fn)(struct message *message))
{
	assert(!message->is_open);
	list_init(&message->node);
	message->fn = fn;
	message->loop = loop;
	message->is_open = true;
	if (loop->mailbox.open++ == 0)
		uv_ref((uv_handle_t *)&loop->mailbox.async);
}

void message_post(struct message *message)
{
	struct mailbox *mailbox = &message->loop->mailbox;

	pthread_mutex_lock(&mailbox->lock);
	if (message->is_open && list_is_empty(&message->node)) {
		/* Under the lock, because the receiver may end the loop once it has the message. */
		if (list_is_empty(&mailbox->posted))
			uv_async_send(&mailbox->async);
		list_append(&mailbox->posted, &message->node);
	}
	pthread_mutex_unlock(&mailbox->lock);
}

void message_close(struct message *message)
{
	struct mailbox *mailbox;

	if (!message->is_open)
		return;
	mailbox = &message->loop->mailbox;
	pthread_mutex_lock(&mailbox->lock);
	list_remove(&message->node);
	message->is_open = false;
	pthread_mutex_unlock(&mailbox->lock);
	if (--mailbox->open == 0)
		uv_unref((uv_handle_t *)&mailbox->async);
}

int mailbox_open(struct loop *loop)
{
	struct mailbox *mailbox = &loop->mailbox;
	int status = uv_async_init(&loop->uv, &mailbox->async, on_async);

	if (status < 0)
		return status;
	uv_unref((uv_handle_t *)&mailbox->async);
	mailbox->open = 0;
	pthread_mutex_init(&mailbox->lock, NULL);
	list_init(&mailbox->posted);
	list_init(&mailbox->delivering);
	return 0;
}

void mailbox_close(struct loop *loop)
{
	assert(loop->mailbox.open == 0);
	uv_close((uv_handle_t *)&loop->mailbox.async, NULL);
	pthread_mutex_destroy(&loop->mailbox.lock);
}
