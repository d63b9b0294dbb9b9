#include "envd/watch/watch_mount.h"

static bool contains(const uint32_t *types, size_t count, uint64_t type)
{
	/* The kernel's field is a signed long in places. */
	for (size_t i = 0; i < count; i++)
		if (types[i] == (uint32_t)type)
			return true;
	return false;
}

bool watch_mount_is_network(uint64_t type)
{
	static const uint32_t types[] = {0x6969, 0xFF534D42, 0x517B, 0xFE534D42, 0x65735546};

	return contains(types, ARRAY_LENGTH(types), type);
}

bool watch_mount_is_virtual(uint64_t type)
{
	static const uint32_t types[] = {
		0x9fa0, /* proc */
		0x62656572, /* sysfs */
		0x27e0eb, /* cgroup */
		0x63677270, /* cgroup2 */
		0x64626720, /* debugfs */
		0x74726163, /* tracefs */
		0x73636673, /* securityfs */
		0xcafe4a11, /* bpf */
		0x1cd1, /* devpts */
		0x19800202, /* mqueue */
	};

	return contains(types, ARRAY_LENGTH(types), type);
}
