#include "proxy/route/host_table.h"

#include "proxy/route/host_name.h"

struct host_entry *host_table_find(struct host_table *table, struct str authority)
{
	struct str name;

	if (table->count == 0 || !host_name_split_port(authority, &name))
		return NULL;
	for (size_t i = 0; i < table->count; i++)
		if (str_equal_nocase(table->items[i].name, name))
			return &table->items[i];
	return NULL;
}

int host_table_add(struct host_table *table, struct str name, host_handler *handler, void *user,
		   struct err *err)
{
	if (name.len && name.p[name.len - 1] == '.')
		name.len--;
	if (!host_name_is_plain(name))
		return err_set(err, ERR_INVALID_ARGUMENT, "\"%.*s\" is not a host name",
			       (int)size_min(name.len, HOST_NAME_BYTES_MAX), name.p);
	if (host_table_find(table, name))
		return err_set(err, ERR_INVALID_ARGUMENT, "%.*s is given twice", (int)name.len,
			       name.p);
	if (table->count == ARRAY_LENGTH(table->items))
		return err_set(err, ERR_RESOURCE_EXHAUSTED, "there are more than %zu hosts",
			       ARRAY_LENGTH(table->items));
	table->items[table->count++] = (struct host_entry){
		.name = name,
		.handler = handler,
		.user = user,
	};
	return 0;
}
