// What a client library's git calls must do: they are commands with much quoting.
import assert from "node:assert/strict";

export function gitChecks({ checkIf, has, folder }) {
	checkIf(has.git, "git: a repository, its branches, a remote and a clone", async ({ git, files }) => {
		const [work, bare, clone] = ["work", "bare.git", "clone"].map((name) => `${folder}/git/${name}`);
		await git.init(bare, { bare: true, initialBranch: "main" });
		await git.init(work, { initialBranch: "main" });
		await git.configureUser("Ann O'Neil", "ann@example.com", { scope: "local", path: work });
		assert.equal(await git.getConfig("user.name", { scope: "local", path: work }), "Ann O'Neil");
		await git.setConfig("pull.rebase", "false", { scope: "local", path: work });

		await files.write(`${work}/a-file`, "one\n");
		const { fileStatus, currentBranch } = await git.status(work);
		assert.equal(currentBranch, "main");
		assert.deepEqual(fileStatus.map((each) => [each.name, each.status]), [["a-file", "untracked"]]);
		await git.add(work, { files: ["a-file"] });
		await git.commit(work, "The first: \"it's\" $HOME");
		assert.equal((await git.status(work)).fileStatus.length, 0);

		await git.createBranch(work, "side");
		await git.checkoutBranch(work, "main");
		await git.deleteBranch(work, "side");
		assert.deepEqual((await git.branches(work)).branches, ["main"]);

		await git.remoteAdd(work, "origin", bare);
		assert.equal(await git.remoteGet(work, "origin"), bare);
		await git.push(work, { remote: "origin", branch: "main" });
		await git.clone(`file://${bare}`, { path: clone });
		assert.equal(await files.read(`${clone}/a-file`), "one\n");

		await files.write(`${work}/a-file`, "two\n");
		await git.restore(work, { paths: ["a-file"] });
		assert.equal(await files.read(`${work}/a-file`), "one\n");
		await files.write(`${work}/a-file`, "three\n");
		await git.add(work);
		await git.commit(work, "The second");
		await git.push(work, { remote: "origin", branch: "main" });
		await git.pull(clone, { remote: "origin", branch: "main" });
		assert.equal(await files.read(`${clone}/a-file`), "three\n");
		await git.reset(clone, { mode: "hard", target: "HEAD~1" });
		assert.equal(await files.read(`${clone}/a-file`), "one\n");
	});
}
