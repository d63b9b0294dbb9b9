#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "proxy/route/address.h"

static union address parse(const char *text, unsigned port)
{
	union address address;

	if (address_parse(str_of(text), &address) < 0)
		fail_msg("%s does not parse", text);
	address_set_port(&address, port);
	return address;
}

static void s005_address_guard(void **state)
{
	static const struct {
		const char *text;
		enum address_verdict verdict;
	} rows[] = {
		{"10.0.0.5", ADDRESS_OK},
		{"192.168.1.1", ADDRESS_OK},
		{"172.16.0.9", ADDRESS_OK},
		{"8.8.8.8", ADDRESS_OK},
		{"fd00::5", ADDRESS_OK},
		{"2001:db8::1", ADDRESS_OK},
		{"0.0.0.0", ADDRESS_UNSPECIFIED},
		{"0.1.2.3", ADDRESS_UNSPECIFIED},
		{"::", ADDRESS_UNSPECIFIED},
		{"127.0.0.1", ADDRESS_LOOPBACK},
		{"127.8.9.10", ADDRESS_LOOPBACK},
		{"::1", ADDRESS_LOOPBACK},
		{"::ffff:127.0.0.1", ADDRESS_LOOPBACK},
		{"::127.0.0.1", ADDRESS_LOOPBACK},
		{"169.254.169.254", ADDRESS_LINK_LOCAL},
		{"::ffff:169.254.169.254", ADDRESS_LINK_LOCAL},
		{"64:ff9b::169.254.169.254", ADDRESS_LINK_LOCAL},
		{"fe80::1", ADDRESS_LINK_LOCAL},
		{"febf::1", ADDRESS_LINK_LOCAL},
		{"fd00:ec2::254", ADDRESS_LINK_LOCAL},
		{"fd20:ce::254", ADDRESS_LINK_LOCAL},
		{"100.100.100.200", ADDRESS_LINK_LOCAL},
		{"::ffff:168.63.129.16", ADDRESS_LINK_LOCAL},
		{"192.0.0.192", ADDRESS_LINK_LOCAL},
		{"100.100.100.201", ADDRESS_OK},
		{"224.0.0.1", ADDRESS_MULTICAST},
		{"255.255.255.255", ADDRESS_MULTICAST},
		{"240.0.0.1", ADDRESS_MULTICAST},
		{"ff02::1", ADDRESS_MULTICAST},
	};
	struct address_guard guard = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		union address address = parse(rows[i].text, 80);

		if (address_guard_check(&guard, &address, false) != rows[i].verdict)
			fail_msg(
				"%s is judged as %s", rows[i].text,
				address_verdict_text(address_guard_check(&guard, &address, false)));
	}
}

/* Every form that has an IPv4 address in it, with addresses that may not be dialled and with one
 * that may. */
static void case_185_ipv4_inside_ipv6(void **state)
{
	static const struct {
		const char *text;
		enum address_verdict verdict;
	} rows[] = {
		/* translated */
		{"::ffff:0:7f00:1", ADDRESS_LOOPBACK},
		{"::ffff:0:169.254.169.254", ADDRESS_LINK_LOCAL},
		{"::ffff:0:224.0.0.1", ADDRESS_MULTICAST},
		{"::ffff:0:0.0.0.0", ADDRESS_UNSPECIFIED},
		{"::ffff:0:10.0.0.5", ADDRESS_OK},
		/* NAT64 */
		{"64:ff9b::a9fe:a9fe", ADDRESS_LINK_LOCAL},
		{"64:ff9b::7f00:1", ADDRESS_LOOPBACK},
		{"64:ff9b::10.0.0.5", ADDRESS_OK},
		{"64:ff9b:1::7f00:1", ADDRESS_LOOPBACK},
		{"64:ff9b:1:fffe::7f00:1", ADDRESS_LOOPBACK},
		{"64:ff9b:1::100.100.100.200", ADDRESS_LINK_LOCAL},
		{"64:ff9b:1:7f00:0:100::", ADDRESS_LOOPBACK}, /* 127.0.0.1 behind /48 */
		{"64:ff9b:1:a9fe:a9:fe00::", ADDRESS_LINK_LOCAL},
		{"64:ff9b:1:7f:0:1::", ADDRESS_LOOPBACK}, /* behind /56 */
		{"64:ff9b:1:a9:fe:a9fe::", ADDRESS_LINK_LOCAL},
		{"64:ff9b:1:5:7f:0:100::", ADDRESS_LOOPBACK}, /* behind /64 */
		{"64:ff9b:1:5:a9:fea9:fe00::", ADDRESS_LINK_LOCAL},
		{"64:ff9b:1::10.0.0.5", ADDRESS_OK},
		{"64:ff9b:1:fffe::10.0.0.5", ADDRESS_OK},
		{"64:ff9b:2::7f00:1", ADDRESS_OK}, /* of nobody */
		/* 6to4 */
		{"2002:7f00:1::", ADDRESS_LOOPBACK},
		{"2002:7f00:1::5", ADDRESS_LOOPBACK},
		{"2002:a9fe:a9fe::1", ADDRESS_LINK_LOCAL},
		{"2002:a83f:8110::1", ADDRESS_LINK_LOCAL},
		{"2002:a00:5::1", ADDRESS_OK},
		{"2003:7f00:1::", ADDRESS_OK},
		/* Teredo: the server, and the client with every bit turned over */
		{"2001:0:7f00:1::", ADDRESS_LOOPBACK},
		{"2001:0:808:808:0:0:80ff:fffe", ADDRESS_LOOPBACK},
		{"2001:0:808:808:8000:63bf:5601:5601", ADDRESS_LINK_LOCAL},
		{"2001:0:808:808:0:0:f5ff:fffa", ADDRESS_OK},
		{"2001:1:7f00:1::", ADDRESS_OK},
		/* ISATAP, behind any prefix */
		{"2001:db8::5efe:127.0.0.1", ADDRESS_LOOPBACK},
		{"fd00::200:5efe:169.254.169.254", ADDRESS_LINK_LOCAL},
		{"fd00::200:5efe:10.0.0.5", ADDRESS_OK},
		{"fd00::300:5efe:127.0.0.1", ADDRESS_OK},
		/* the others */
		{"::169.254.169.254", ADDRESS_LINK_LOCAL},
		{"::ffff:100.100.100.200", ADDRESS_LINK_LOCAL},
	};
	struct address_guard guard = {0};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		union address address = parse(rows[i].text, 80);
		enum address_verdict verdict = address_guard_check(&guard, &address, false);
		bool loopback = rows[i].verdict == ADDRESS_LOOPBACK;

		if (verdict != rows[i].verdict)
			fail_msg("%s is judged as %s", rows[i].text, address_verdict_text(verdict));
		/* Whoever may reach loopback may by any name, and nothing else by it. */
		verdict = address_guard_check(&guard, &address, true);
		if (verdict != (loopback ? ADDRESS_OK : rows[i].verdict))
			fail_msg("%s of the operator is judged as %s", rows[i].text,
				 address_verdict_text(verdict));
	}
}

/* A port of the proxy's own is not reached by another spelling of its address. */
static void case_185_own_listeners_inside_ipv6(void **state)
{
	static const char *const texts[] = {
		"::ffff:0:127.0.0.1", "64:ff9b:1::127.0.0.1", "2002:7f00:1::1",
		"2001:0:7f00:1::",    "fd00::5efe:127.0.0.1", "64:ff9b::127.0.0.1"};
	struct address_guard guard;
	union address listener = parse("127.0.0.1", 3002);

	(void)state;
	address_guard_init(&guard, true);
	address_guard_add_listener(&guard, &listener);
	for (size_t i = 0; i < ARRAY_LENGTH(texts); i++) {
		union address target = parse(texts[i], 3002), beside = parse(texts[i], 3001);

		if (address_guard_check(&guard, &target, true) != ADDRESS_OWN ||
		    address_guard_check(&guard, &beside, true) != ADDRESS_OK)
			fail_msg("%s", texts[i]);
	}
}

static void s005_loopback_by_permission(void **state)
{
	struct address_guard guard = {0};
	union address loopback = parse("127.0.0.1", 80), metadata = parse("169.254.169.254", 80);

	(void)state;
	assert_int_equal(address_guard_check(&guard, &loopback, true), ADDRESS_OK);
	assert_int_equal(address_guard_check(&guard, &metadata, true), ADDRESS_LINK_LOCAL);
	guard.allow_loopback = true;
	assert_int_equal(address_guard_check(&guard, &loopback, false), ADDRESS_OK);
	assert_int_equal(address_guard_check(&guard, &metadata, false), ADDRESS_LINK_LOCAL);
}

static void s005_own_listeners(void **state)
{
	struct address_guard guard;
	union address listener = parse("127.0.0.1", 3002), target;

	(void)state;
	address_guard_init(&guard, true);
	address_guard_add_listener(&guard, &listener);
	target = parse("127.0.0.1", 3002);
	assert_int_equal(address_guard_check(&guard, &target, true), ADDRESS_OWN);
	target = parse("::ffff:127.0.0.1", 3002);
	assert_int_equal(address_guard_check(&guard, &target, true), ADDRESS_OWN);
	target = parse("127.0.0.1", 3003);
	assert_int_equal(address_guard_check(&guard, &target, true), ADDRESS_OK);
	target = parse("127.0.0.2", 3002);
	assert_int_equal(address_guard_check(&guard, &target, true), ADDRESS_OK);

	listener = parse("0.0.0.0", 4000);
	address_guard_add_listener(&guard, &listener);
	target = parse("127.0.0.2", 4000);
	assert_int_equal(address_guard_check(&guard, &target, true), ADDRESS_OWN);
	target = parse("10.255.255.254", 4000);
	assert_int_equal(address_guard_check(&guard, &target, true), ADDRESS_OK);
}

/* Interfaces come up while the proxy runs, one for each sandbox perhaps. */
static void s005_own_listeners_at_addresses_that_came_later(void **state)
{
	struct ifreq request = {.ifr_name = "lo"};
	struct sockaddr_in *address = (struct sockaddr_in *)&request.ifr_addr;
	struct address_guard guard;
	union address listener = parse("0.0.0.0", 4000), target = parse("10.77.0.1", 4000);
	int fd;

	(void)state;
	if (unshare(CLONE_NEWNET) < 0)
		skip();
	fd = socket(AF_INET, SOCK_DGRAM, 0);
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	assert_int_equal(ioctl(fd, SIOCSIFFLAGS, &request), 0);
	address_guard_init(&guard, false);
	address_guard_add_listener(&guard, &listener);
	assert_int_equal(address_guard_check(&guard, &target, false), ADDRESS_OK);
	snprintf(request.ifr_name, sizeof(request.ifr_name), "lo:1");
	memset(address, 0, sizeof(*address));
	*address = target.v4;
	address->sin_port = 0;
	assert_int_equal(ioctl(fd, SIOCSIFADDR, &request), 0);
	assert_int_equal(address_guard_check(&guard, &target, false), ADDRESS_OWN);
	target = parse("::ffff:10.77.0.1", 4000);
	assert_int_equal(address_guard_check(&guard, &target, false), ADDRESS_OWN);
	target = parse("10.77.0.1", 4001);
	assert_int_equal(address_guard_check(&guard, &target, false), ADDRESS_OK);
	close(fd);
}

static void case_169_texts(void **state)
{
	static const char *const bad[] = {
		"",	 "localhost", "10.0.0",	      "10.0.0.1:80",	  "[fd00::5",
		"fd00:", "010.0.0.1", "[fd00::5]:80", "fe80::1%nosuchif", "1"};
	union address address = parse("[fd00::5]", 8080);
	char text[ADDRESS_TEXT_BYTES];

	(void)state;
	address_format(&address, text, sizeof(text));
	assert_string_equal(text, "[fd00::5]:8080");
	assert_int_equal(address_port(&address), 8080);
	address = parse("fe80::1%lo", 80);
	assert_int_not_equal(address.v6.sin6_scope_id, 0);
	address = parse("10.0.0.1", 80);
	address_format(&address, text, sizeof(text));
	assert_string_equal(text, "10.0.0.1:80");
	for (size_t i = 0; i < ARRAY_LENGTH(bad); i++)
		if (address_parse(str_of(bad[i]), &address) == 0)
			fail_msg("%s parses", bad[i]);
}

static void namespaces(void **state)
{
	static const struct {
		const char *text, *path, *address; /* NULL: not one */
	} rows[] = {
		{"netns:/run/netns/a", "/run/netns/a", ""},
		{"netns:/proc/1/ns/net,127.0.0.2", "/proc/1/ns/net", "127.0.0.2:0"},
		{"netns:/a,::1", "/a", "[::1]:0"},
		{"netns:/a,[::1]", "/a", "[::1]:0"},
		{"netns:/a..b/.c/..d", "/a..b/.c/..d", ""},
		{"netns:", NULL, NULL},
		{"netns:/", NULL, NULL},
		{"netns:a", NULL, NULL},
		{"netns:/..", NULL, NULL},
		{"netns:/a/./b", NULL, NULL},
		{"netns:/a/../b", NULL, NULL},
		{"netns:/a,", NULL, NULL},
		{"netns:/a,b", NULL, NULL},
		{"netns:/a,127.0.0.1,127.0.0.2", NULL, NULL},
		{"netns:/a,fe80::1%lo", NULL, NULL},
		{"Netns:/a", NULL, NULL},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LENGTH(rows); i++) {
		union address address;
		char text[ADDRESS_TEXT_BYTES] = "";
		struct str path;
		int status = address_parse_netns(str_of(rows[i].text), &path, &address);

		if ((status == 0) != (rows[i].path != NULL))
			fail_msg("%s", rows[i].text);
		if (status < 0)
			continue;
		assert_true(str_equal(path, str_of(rows[i].path)));
		if (address.any.sa_family != AF_UNSPEC)
			address_format(&address, text, sizeof(text));
		assert_string_equal(text, rows[i].address);
	}
}

/* In there 127.0.0.1 is the sandbox's own, also at the port where the proxy listens out here. */
static void s005_inside_a_namespace(void **state)
{
	struct address_guard guard = {0};
	union address listener = parse("127.0.0.1", 3002), outside = parse("10.0.0.1", 3002);
	union address target;

	(void)state;
	address_guard_add_listener(&guard, &listener);
	address_guard_add_listener(&guard, &outside);
	target = parse("127.0.0.1", 3002);
	assert_int_equal(address_guard_check_inside(&guard, &target), ADDRESS_OK);
	assert_int_equal(address_guard_check(&guard, &target, true), ADDRESS_OWN);
	target = parse("::1", 80);
	assert_int_equal(address_guard_check_inside(&guard, &target), ADDRESS_OK);
	target = parse("10.0.0.1", 3002);
	assert_int_equal(address_guard_check_inside(&guard, &target), ADDRESS_OWN);
	target = parse("169.254.169.254", 80);
	assert_int_equal(address_guard_check_inside(&guard, &target), ADDRESS_LINK_LOCAL);
	target = parse("::ffff:0.0.0.0", 80);
	assert_int_equal(address_guard_check_inside(&guard, &target), ADDRESS_UNSPECIFIED);
	target = parse("::ffff:0:127.0.0.1", 3002);
	assert_int_equal(address_guard_check_inside(&guard, &target), ADDRESS_OK);
	/* Out there is a router that leads such packets to somebody's loopback. */
	target = parse("2002:7f00:1::1", 80);
	assert_int_equal(address_guard_check_inside(&guard, &target), ADDRESS_LOOPBACK);
	target = parse("2002:a00:1::1", 3002);
	assert_int_equal(address_guard_check_inside(&guard, &target), ADDRESS_OWN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(s005_address_guard),
		cmocka_unit_test(case_185_ipv4_inside_ipv6),
		cmocka_unit_test(case_185_own_listeners_inside_ipv6),
		cmocka_unit_test(s005_loopback_by_permission),
		cmocka_unit_test(s005_own_listeners),
		cmocka_unit_test(case_169_texts),
		cmocka_unit_test(namespaces),
		cmocka_unit_test(s005_inside_a_namespace),
		cmocka_unit_test(s005_own_listeners_at_addresses_that_came_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
