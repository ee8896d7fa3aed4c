package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"codehub/api"
	"codehub/internal/testing/harness"
)

// installPostgres copies the PostgreSQL of this machine into a home: the image has none. It is found
// relative to its binaries.
func (s *server) installPostgres(id string) {
	s.Helper()
	bin, err := filepath.EvalSymlinks(strings.TrimSpace(s.output("sh", "-c", "ls -d /usr/lib/postgresql/*/bin | tail -1")))
	if err != nil {
		s.Fatal(err)
	}
	version, home := filepath.Base(filepath.Dir(bin)), s.homeFolder(id)
	script := fmt.Sprintf(`set -e
		owner=$(stat -c %%u:%%g %[1]q)
		mkdir -p %[1]q/pg/lib/postgresql %[1]q/pg/share/postgresql %[1]q/pg/so
		cp -a /usr/lib/postgresql/%[2]s %[1]q/pg/lib/postgresql/
		cp -a /usr/share/postgresql/%[2]s %[1]q/pg/share/postgresql/
		ldd %[3]q/postgres %[3]q/psql %[3]q/pgbench | awk '/=> \// && $1 !~ /^lib(c|m|pthread|dl|rt|resolv)\.so/ {print $3}' | sort -u | xargs cp -L -t %[1]q/pg/so
		chown -R "$owner" %[1]q/pg
		ln -s lib/postgresql/%[2]s/bin %[1]q/pg/bin`, home, version, bin)
	s.output("sh", "-c", script)
}

// output runs a command on this machine.
func (s *server) output(name string, args ...string) string {
	s.Helper()
	out, err := exec.CommandContext(s.Context(), name, args...).CombinedOutput()
	if err != nil {
		s.Fatalf("%s: %v\n%s", name, err, out)
	}
	return string(out)
}

// withPostgres are the variables of a shell that runs the programs of installPostgres.
const withPostgres = `export LD_LIBRARY_PATH=$HOME/pg/so PATH=$HOME/pg/bin:$PATH PGHOST=/tmp PGDATABASE=postgres; `

// checkUse starts the database of a home and reads its repository. Each is "ok", or what is wrong.
func (s *server) checkUse(id string) (postgres, git string) {
	s.Helper()
	postgres = s.run(id, withPostgres+`exec 2>&1; rm -f data/postmaster.pid
		pg_ctl -D data -l log2 -w -t 60 start >/dev/null || { echo it does not start; tail -5 log2; exit 0; }
		psql -Atc "SELECT CASE WHEN (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history) THEN 'ok' ELSE 'the sums differ' END"
		pg_ctl -D data -m fast -w stop >/dev/null`)
	git = s.run(id, `cd repo && { git fsck --full --no-dangling && git log --format=%H >/dev/null && echo ok; } 2>&1 || true`)
	return strings.TrimSpace(postgres), strings.TrimSpace(git)
}

// A home in which PostgreSQL writes and Git commits is backed up. What a fork has of the repository is always whole;
// what it has of the database is, or the backup counts files that changed. After both have stopped all is whole.
// It takes a minute, for the load and three starts of forks.
func TestBackupsUnderLoad(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	s := startQuick(t, append(folderBucket(t).settings, "CODEHUB_DEFAULT_IMAGE="+env.slimImage, "CODEHUB_DELETE_GRACE=0s", "COORDINATOR_IDLE_INTERVAL=2s", "MAX_RUNNING_PER_USER=0")...)
	id := s.create(api.CreateWorkspace{Name: "alpha"})
	s.awaitPhase(id, "RUNNING")
	s.installPostgres(id)
	s.run(id, withPostgres+`exec >setup 2>&1; set -e
		initdb -D data --data-checksums --auth=trust -U "$(id -un)" >/dev/null
		echo "unix_socket_directories = '/tmp'" >>data/postgresql.conf; echo "listen_addresses = ''" >>data/postgresql.conf
		pg_ctl -D data -l log -w start; pgbench -i -s 1 -q
		git init -q repo; git -C repo config user.email a@b; git -C repo config user.name a; git -C repo commit -q --allow-empty -m first
		touch go
		(while [ -e go ]; do pgbench -n -c 2 -T 2; done >/dev/null 2>&1 &)
		(cd repo; i=0; while [ -e ../go ]; do i=$((i+1)); echo $i >f$((i%40)); git add -A; git commit -qm $i; done >/dev/null 2>&1 &)`)
	backups := []api.Backup{s.backUp(id, "load"), s.backUp(id, "more load")}
	s.run(id, withPostgres+`rm go; sleep 4; pg_ctl -D data -m fast -w stop >/dev/null`)
	backups = append(backups, s.backUp(id, "quiet"))
	forks := make([]string, len(backups))
	for i, b := range backups {
		made, err := s.api.Fork(s.Context(), id, api.Fork{Backup: b.ID, Start: true})
		if err != nil {
			t.Fatal(err)
		}
		forks[i] = made[0].ID
	}
	for i, b := range backups {
		s.awaitPhase(forks[i], "RUNNING")
		postgres, git := s.checkUse(forks[i])
		t.Logf("%s: %d files, %d changed, %d bytes stored: PostgreSQL %s, Git %s", b.Note, b.Files, b.Changed, b.StoredBytes, postgres, git)
		if git != "ok" || b.Problems > 0 {
			t.Errorf("the repository of %q: %s", b.Note, git)
		}
		if quiet := i == len(backups)-1; postgres != "ok" && (quiet || b.Changed == 0) || quiet && b.Changed > 0 {
			t.Errorf("the database of %q: %s, %d files changed", b.Note, postgres, b.Changed)
		}
	}
}
