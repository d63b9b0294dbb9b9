#include "envd/watch/watcher_tree.h"
#include "tests/support/cmocka.h"

static struct tree tree;

static int setup(void **state)
{
	(void)state;
	tree_init(&tree, 1000);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	tree_fini(&tree);
	assert_int_equal(tree.count, 0);
	return 0;
}

static struct tree_node *add(struct tree_node *parent, const char *name)
{
	struct tree_node *node = tree_add(&tree, parent, str_of(name));

	assert_non_null(node);
	return node;
}

static void check_path(const struct tree_node *node, const char *want)
{
	struct buf b;

	buf_init(&b, 4096);
	assert_int_equal(tree_append_path(node, &b), 0);
	assert_true(str_equal(buf_str(&b), str_of(want)));
	buf_fini(&b);
}

static void entries_are_found_by_directory_and_name(void **state)
{
	struct tree_node *a = add(tree.root, "a"), *b = add(a, "b");
	char name[16];

	(void)state;
	assert_ptr_equal(tree_find(&tree, tree.root, STR("a")), a);
	assert_ptr_equal(tree_find(&tree, a, STR("b")), b);
	assert_null(tree_find(&tree, tree.root, STR("b")));
	check_path(tree.root, ".");
	check_path(a, "a");
	check_path(b, "a/b");
	/* More than the table begins with. */
	for (int i = 0; i < 900; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		add(i % 2 ? a : b, name);
	}
	for (int i = 0; i < 900; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		assert_non_null(tree_find(&tree, i % 2 ? a : b, str_of(name)));
		assert_null(tree_find(&tree, i % 2 ? b : a, str_of(name)));
	}
	tree_remove(&tree, b);
	assert_int_equal(tree.count, 451);
	for (int i = 0; i < 549; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		add(tree.root, name);
	}
	assert_null(tree_add(&tree, a, STR("one-too-many")));
}

static void case_116_moved_directories_keep_what_is_in_them(void **state)
{
	struct tree_node *a = add(tree.root, "a"), *deep = add(add(a, "x"), "y"),
			 *b = add(tree.root, "b");
	struct tree_node *moved;

	(void)state;
	tree_set_watch(&tree, a, 7);
	tree_set_watch(&tree, deep, 8);
	moved = tree_move(&tree, a, b, STR("c"));
	assert_non_null(moved);
	assert_null(tree_find(&tree, tree.root, STR("a")));
	check_path(tree_by_watch(&tree, 7), "b/c");
	check_path(tree_by_watch(&tree, 8), "b/c/x/y");
	check_path(tree_find(&tree, moved, STR("x")), "b/c/x");
	assert_true(tree_is_within(deep, b));
	assert_false(tree_is_within(b, moved));
	tree_remove(&tree, b);
	assert_null(tree_by_watch(&tree, 7));
	assert_int_equal(tree.watch_count, 0);
	assert_int_equal(tree.count, 0);
}

static void a_watch_belongs_to_one_directory(void **state)
{
	struct tree_node *a = add(tree.root, "a"), *b = add(tree.root, "b");

	(void)state;
	tree_set_watch(&tree, a, 1);
	tree_set_watch(&tree, b, 1);
	assert_int_equal(a->wd, -1);
	assert_ptr_equal(tree_by_watch(&tree, 1), b);
	tree_set_watch(&tree, b, 2);
	assert_null(tree_by_watch(&tree, 1));
	for (int wd = 3; wd < 700; wd++) {
		char name[16];

		snprintf(name, sizeof(name), "d%d", wd);
		tree_set_watch(&tree, add(a, name), wd);
	}
	for (int wd = 3; wd < 700; wd++)
		assert_int_equal(tree_by_watch(&tree, wd)->wd, wd);
	tree_forget_watches(&tree);
	assert_int_equal(tree.watch_count, 0);
	assert_null(tree_by_watch(&tree, 2));
	assert_int_equal(b->wd, -1);
}

static void walks_meet_everything_once(void **state)
{
	struct tree_node *a = add(tree.root, "a"), *node;
	size_t count = 0;

	(void)state;
	add(add(a, "x"), "y");
	add(a, "z");
	add(tree.root, "b");
	for (node = a; node; node = tree_next(node, a)) {
		assert_true(tree_is_within(node, a));
		node->seen = 1;
		assert_true(node == a || node->parent->seen == 1);
		count++;
	}
	assert_int_equal(count, 4);
	for (node = tree_deepest_first(a); node; node = tree_deepest_next(node, a)) {
		for (const struct tree_node *child = node->children; child; child = child->next)
			assert_int_equal(child->seen, 2);
		node->seen = 2;
		count--;
	}
	assert_int_equal(count, 0);
}

static void case_119_the_difference_is_exact(void **state)
{
	struct tree_node *node = add(tree.root, "f");
	struct stat st = {.st_ino = 5, .st_dev = 1, .st_mode = S_IFREG | 0644, .st_size = 3}, other;

	(void)state;
	st.st_mtim.tv_sec = st.st_ctim.tv_sec = 100;
	assert_int_equal(tree_compare(node, &st), TREE_REPLACED);
	tree_learn(node, &st);
	assert_int_equal(tree_compare(node, &st), 0);
	other = st;
	other.st_ctim.tv_nsec = 1;
	assert_int_equal(tree_compare(node, &other), TREE_CHANGED);
	other.st_mtim.tv_nsec = 1;
	assert_int_equal(tree_compare(node, &other), TREE_WRITTEN);
	other.st_mode = S_IFREG | 0600;
	assert_int_equal(tree_compare(node, &other), TREE_WRITTEN | TREE_CHANGED);
	other = st;
	other.st_size++;
	assert_int_equal(tree_compare(node, &other), TREE_WRITTEN);
	other = st;
	other.st_uid = 1000;
	assert_int_equal(tree_compare(node, &other), TREE_CHANGED);
	other = st;
	other.st_ino++;
	assert_int_equal(tree_compare(node, &other), TREE_REPLACED);
	other = st;
	other.st_mode = S_IFDIR | 0644;
	assert_int_equal(tree_compare(node, &other), TREE_REPLACED);
	/* A directory's times are those of its entries. */
	tree_learn(node, &other);
	other.st_mtim.tv_sec = other.st_ctim.tv_sec = 200;
	other.st_size = 4096;
	assert_int_equal(tree_compare(node, &other), 0);
	other.st_mode = S_IFDIR | 0700;
	assert_int_equal(tree_compare(node, &other), TREE_CHANGED);
}

static size_t doubted(void)
{
	const struct list_node *node;
	size_t count = 0;

	LIST_FOR_EACH (node, &tree.doubts)
		count++;
	return count;
}

static void a_doubt_moves_and_goes_with_its_entry(void **state)
{
	struct tree_node *a = add(tree.root, "a"), *b = add(a, "b"), *c = add(tree.root, "c");

	(void)state;
	tree_doubt(&tree, a);
	tree_doubt(&tree, b);
	tree_doubt(&tree, b);
	tree_doubt(&tree, tree.root);
	assert_int_equal(doubted(), 2);
	b = tree_move(&tree, b, c, STR("b"));
	assert_non_null(b);
	assert_int_equal(doubted(), 2);
	tree_trust(b);
	tree_trust(b);
	assert_int_equal(doubted(), 1);
	tree_remove(&tree, a);
	assert_int_equal(doubted(), 0);
	/* Whoever loses its watch to another is not where it was. */
	tree_set_watch(&tree, b, 7);
	tree_set_watch(&tree, c, 7);
	assert_int_equal(doubted(), 1);
	assert_false(list_is_empty(&b->doubt));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(entries_are_found_by_directory_and_name, setup,
						teardown),
		cmocka_unit_test_setup_teardown(case_116_moved_directories_keep_what_is_in_them,
						setup, teardown),
		cmocka_unit_test_setup_teardown(a_watch_belongs_to_one_directory, setup, teardown),
		cmocka_unit_test_setup_teardown(a_doubt_moves_and_goes_with_its_entry, setup,
						teardown),
		cmocka_unit_test_setup_teardown(walks_meet_everything_once, setup, teardown),
		cmocka_unit_test_setup_teardown(case_119_the_difference_is_exact, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
