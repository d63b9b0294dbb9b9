#include "tests/support/cmocka.h"

#include "proxy/limits.h"
#include "proxy/relay/clients.h"

#define MANY 90

static struct stream_peer *peer_of(struct clients *clients, const char *text)
{
	union address address;

	assert_int_equal(address_parse(str_of(text), &address), 0);
	return clients_identify(clients, &address.any);
}

static struct clients *open_clients(size_t exchanges_max)
{
	static const struct option_list none;

	return clients_new(exchanges_max, &none);
}

static void gone(struct stream_peer *peer)
{
	peer->on_gone(peer);
}

/* How many of MANY it gets; they are left again. */
static size_t enter_many(struct clients *clients, struct stream_peer *peer)
{
	enum client_bound bounds[MANY];
	size_t entered = 0;

	for (size_t i = 0; i < MANY; i++) {
		bounds[i] = clients_enter(clients, peer);
		entered += bounds[i] == CLIENT_BOUND_NONE;
	}
	for (size_t i = 0; i < MANY; i++)
		clients_leave(clients, peer, bounds[i]);
	return entered;
}

static void a_client_is_an_address_or_a_network_of_64_bits(void **state)
{
	struct clients *clients = open_clients(9);
	struct clients_totals totals;
	struct stream_peer *v4 = peer_of(clients, "192.0.2.1");
	struct stream_peer *peers[] = {
		v4,
		peer_of(clients, "192.0.2.1"),
		peer_of(clients, "::ffff:192.0.2.1"),
		peer_of(clients, "192.0.2.2"),
		peer_of(clients, "2001:db8:0:1::1"),
		peer_of(clients, "2001:db8:0:1:ffff::2"),
		peer_of(clients, "2001:db8:0:2::1"),
	};
	struct sockaddr local = {.sa_family = AF_UNIX};

	assert_ptr_equal(peers[1], v4);
	assert_ptr_equal(peers[2], v4);
	assert_ptr_not_equal(peers[3], v4);
	assert_ptr_equal(peers[5], peers[4]);
	assert_ptr_not_equal(peers[6], peers[4]);
	assert_null(clients_identify(clients, &local));
	clients_totals(clients, &totals);
	assert_int_equal(totals.clients, 4);
	for (size_t i = 0; i < ARRAY_LENGTH(peers); i++)
		gone(peers[i]);
	clients_totals(clients, &totals);
	assert_int_equal(totals.clients, 0);
	clients_free(clients);
}

static void peers_for_many_clients_are_nobodys(void **state)
{
	const char *networks[] = {"10.1.0.0/16", "2001:db8::/33", "192.0.2.7"};
	const struct option_list list = {.items = networks, .count = ARRAY_LENGTH(networks)};
	struct clients *clients = clients_new(MANY, &list);
	struct stream_peer *other = peer_of(clients, "10.2.0.1");

	assert_null(peer_of(clients, "10.1.255.1"));
	assert_null(peer_of(clients, "::ffff:10.1.2.3"));
	assert_null(peer_of(clients, "2001:db8:7fff::1"));
	assert_null(peer_of(clients, "192.0.2.7"));
	assert_non_null(other);
	gone(other);
	other = peer_of(clients, "2001:db8:8000::1");
	assert_non_null(other);
	gone(other);
	assert_int_equal(enter_many(clients, NULL), MANY);
	for (size_t i = 0; i < ARRAY_LENGTH(networks); i++)
		assert_true(clients_is_network(str_of(networks[i])));
	assert_false(clients_is_network(STR("10.0.0.0/33")));
	assert_false(clients_is_network(STR("10.0.0.0/")));
	assert_false(clients_is_network(STR("front.example")));
	clients_free(clients);
}

static void exchanges_are_shared_by_what_is_left(void **state)
{
	struct clients *clients = open_clients(MANY);
	struct stream_peer *first = peer_of(clients, "192.0.2.1"),
			   *second = peer_of(clients, "192.0.2.2");
	enum client_bound bounds[MANY];
	struct clients_totals totals;

	assert_int_equal(enter_many(clients, first), 60);
	for (size_t i = 0; i < MANY; i++)
		bounds[i] = clients_enter(clients, first);
	/* There is some for others, whatever one does, and for those after them. */
	assert_int_equal(enter_many(clients, second), 20);
	clients_totals(clients, &totals);
	assert_int_equal(totals.exchanges, 60);
	assert_int_equal(totals.exchanges_refused[CLIENT_BOUND_CLIENT], 30 + 30 + 70);
	assert_int_equal(totals.exchanges_refused[CLIENT_BOUND_ALL], 0);
	for (size_t i = 0; i < MANY; i++)
		clients_leave(clients, first, bounds[i]);
	assert_int_equal(enter_many(clients, second), 60);
	gone(first);
	gone(second);
	clients_free(clients);
}

static void a_sandbox_may_have_half(void **state)
{
	struct clients *clients = open_clients(MANY);
	enum client_bound bounds[MANY];
	size_t active = 0;

	for (size_t i = 0; i < MANY; i++) {
		bounds[i] = clients_enter(clients, NULL);
		if (clients_allow_sandbox(clients, active + 1)) {
			active++;
		} else {
			clients_leave(clients, NULL, bounds[i]);
			bounds[i] = CLIENT_BOUNDS;
		}
	}
	assert_in_range(active, MANY / 2, MANY / 2 + 1);
	for (size_t i = 0; i < MANY; i++)
		if (bounds[i] != CLIENT_BOUNDS)
			clients_leave(clients, NULL, bounds[i]);
	clients_free(clients);
}

static void nobody_enters_where_all_is_taken(void **state)
{
	struct clients *clients = open_clients(1);
	struct stream_peer *peer = peer_of(clients, "192.0.2.1");
	enum client_bound nobody = clients_enter(clients, NULL),
			  bound = clients_enter(clients, peer);

	assert_int_equal(nobody, CLIENT_BOUND_NONE);
	assert_int_equal(bound, CLIENT_BOUND_ALL);
	/* The client is kept for who was refused, too. */
	gone(peer);
	clients_leave(clients, peer, bound);
	clients_leave(clients, NULL, nobody);
	clients_free(clients);
}

static void who_leaves_refusals_waiting_floods(void **state)
{
	struct clients *clients = open_clients(1);
	struct stream_peer *peer = peer_of(clients, "192.0.2.1");
	enum client_bound first = clients_enter(clients, peer);

	assert_int_equal(first, CLIENT_BOUND_NONE);
	for (size_t i = 0; i < PROXY_REFUSALS_OPEN_MAX; i++) {
		assert_false(clients_is_flooding(peer));
		assert_int_not_equal(clients_enter(clients, peer), CLIENT_BOUND_NONE);
	}
	assert_true(clients_is_flooding(peer));
	assert_false(clients_is_flooding(NULL));
	for (size_t i = 0; i < PROXY_REFUSALS_OPEN_MAX; i++)
		clients_leave(clients, peer, CLIENT_BOUND_ALL);
	assert_false(clients_is_flooding(peer));
	clients_leave(clients, peer, first);
	gone(peer);
	clients_free(clients);
}

static void heads_count_for_their_client_and_for_all(void **state)
{
	struct clients *clients = open_clients(1);
	struct stream_peer *first = peer_of(clients, "192.0.2.1"),
			   *second = peer_of(clients, "192.0.2.2");
	struct clients_totals totals;
	struct share share, other;

	share_init(&share, &first->heads, 0);
	share_init(&other, &second->heads, 0);
	assert_true(share_take(&share, PROXY_CLIENT_HEADS_BYTES_MAX));
	assert_false(share_take(&share, 1));
	assert_true(share_take(&other, 1));
	clients_totals(clients, &totals);
	assert_int_equal(totals.heads_bytes, PROXY_CLIENT_HEADS_BYTES_MAX + 1);
	assert_int_equal(totals.heads_refused[CLIENT_BOUND_CLIENT], 1);
	share_release(&share);
	share_release(&other);
	gone(first);
	gone(second);
	/* What was refused stays counted. */
	clients_totals(clients, &totals);
	assert_int_equal(totals.heads_bytes, 0);
	assert_int_equal(totals.heads_refused[CLIENT_BOUND_CLIENT], 1);
	clients_free(clients);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_client_is_an_address_or_a_network_of_64_bits),
		cmocka_unit_test(peers_for_many_clients_are_nobodys),
		cmocka_unit_test(exchanges_are_shared_by_what_is_left),
		cmocka_unit_test(a_sandbox_may_have_half),
		cmocka_unit_test(nobody_enters_where_all_is_taken),
		cmocka_unit_test(who_leaves_refusals_waiting_floods),
		cmocka_unit_test(heads_count_for_their_client_and_for_all),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
