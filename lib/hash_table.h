/*
 * Objects found by a hash of their name or number: an intrusive table, whose nodes their owners
 * embed. It grows and shrinks with what is in it; empty it holds no memory. What equality means is
 * the owner's business: the table tells which nodes have a hash, in no particular order.
 *
 * Whoever lets strangers choose names hashes them by hash_text, which they cannot foresee.
 */
#ifndef LIB_HASH_TABLE_H
#define LIB_HASH_TABLE_H

#include "lib/base.h"

struct hash_node {
	struct hash_node *next, **link; /* of the bucket; link NULL: in no table */
	uint64_t hash;
};

/* All zero: empty. */
struct hash_table {
	struct hash_node **buckets;
	size_t capacity, count; /* capacity: a power of two, or 0 */
};

uint64_t hash_text(struct str text);
uint64_t hash_number(uint64_t number);

/* A node that is all zero, or was removed. */
void hash_table_insert(struct hash_table *table, struct hash_node *node, uint64_t hash);
/* Nothing happens when it is in no table. */
void hash_table_remove(struct hash_table *table, struct hash_node *node);
static inline bool hash_node_is_in_table(const struct hash_node *node)
{
	return node->link != NULL;
}
/* The first node with that hash, and the next one after `node`; NULL: there is none. */
struct hash_node *hash_table_first(const struct hash_table *table, uint64_t hash);
struct hash_node *hash_table_next(const struct hash_node *node);

/* `node` may not be removed by the body. */
#define HASH_TABLE_FOR_EACH(node, table, hash) \
	for ((node) = hash_table_first((table), (hash)); (node); (node) = hash_table_next(node))

#endif
