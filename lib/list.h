/*
 * Intrusive doubly linked list. The head is a list_node of its own; an unlinked node points to
 * itself, so list_remove may be called twice. Iterate with LIST_FOR_EACH_SAFE when the body may
 * remove the current node; when it may remove *any* node, move the list to a local head first.
 */
#ifndef LIB_LIST_H
#define LIB_LIST_H

#include "lib/base.h"

struct list_node {
	struct list_node *next, *previous;
};

static inline void list_init(struct list_node *node)
{
	node->next = node->previous = node;
}

static inline bool list_is_empty(const struct list_node *head)
{
	return head->next == head;
}

static inline void list_append(struct list_node *head, struct list_node *node)
{
	node->previous = head->previous;
	node->next = head;
	head->previous->next = node;
	head->previous = node;
}

static inline void list_prepend(struct list_node *head, struct list_node *node)
{
	list_append(head->next, node);
}

static inline void list_remove(struct list_node *node)
{
	node->previous->next = node->next;
	node->next->previous = node->previous;
	list_init(node);
}

/* Moves everything from `from` (left empty) to the end of `to`. */
static inline void list_splice(struct list_node *to, struct list_node *from)
{
	if (list_is_empty(from))
		return;
	from->next->previous = to->previous;
	to->previous->next = from->next;
	from->previous->next = to;
	to->previous = from->previous;
	list_init(from);
}

#define LIST_FOR_EACH(node, head) \
	for ((node) = (head)->next; (node) != (head); (node) = (node)->next)
#define LIST_FOR_EACH_SAFE(node, following, head) \
	for ((node) = (head)->next, (following) = (node)->next; (node) != (head); \
	     (node) = (following), (following) = (node)->next)

#endif
