#include "lib/hash_table.h"

#include "lib/digest.h"

#define FIRST_CAPACITY 16

uint64_t hash_text(struct str text)
{
	return digest_short(text);
}

/* The finaliser of SplitMix64: numbers that follow each other spread over all bits. */
uint64_t hash_number(uint64_t number)
{
	number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
	number = (number ^ number >> 27) * 0x94d049bb133111ebu;
	return number ^ number >> 31;
}

static void link_in(struct hash_table *table, struct hash_node *node)
{
	struct hash_node **bucket = &table->buckets[node->hash & (table->capacity - 1)];

	node->next = *bucket;
	node->link = bucket;
	if (node->next)
		node->next->link = &node->next;
	*bucket = node;
}

static void resize(struct hash_table *table, size_t capacity)
{
	struct hash_node **old = table->buckets;
	size_t old_capacity = table->capacity;

	table->buckets = capacity ? xcalloc(capacity, sizeof(*table->buckets)) : NULL;
	table->capacity = capacity;
	for (size_t i = 0; i < old_capacity; i++) {
		while (old[i]) {
			struct hash_node *node = old[i];

			old[i] = node->next;
			link_in(table, node);
		}
	}
	free(old);
}

void hash_table_insert(struct hash_table *table, struct hash_node *node, uint64_t hash)
{
	assert(!node->link);
	if (table->count == table->capacity)
		resize(table, table->capacity ? 2 * table->capacity : FIRST_CAPACITY);
	node->hash = hash;
	link_in(table, node);
	table->count++;
}

void hash_table_remove(struct hash_table *table, struct hash_node *node)
{
	if (!node->link)
		return;
	*node->link = node->next;
	if (node->next)
		node->next->link = node->link;
	node->next = NULL;
	node->link = NULL;
	table->count--;
	if (table->count == 0)
		resize(table, 0);
	else if (table->capacity > FIRST_CAPACITY && table->count < table->capacity / 8)
		resize(table, table->capacity / 2);
}

static struct hash_node *with_hash(struct hash_node *node, uint64_t hash)
{
	while (node && node->hash != hash)
		node = node->next;
	return node;
}

struct hash_node *hash_table_first(const struct hash_table *table, uint64_t hash)
{
	return table->capacity ? with_hash(table->buckets[hash & (table->capacity - 1)], hash)
			       : NULL;
}

struct hash_node *hash_table_next(const struct hash_node *node)
{
	return with_hash(node->next, node->hash);
}
