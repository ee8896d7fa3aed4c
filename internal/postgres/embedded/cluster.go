package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// bootstrap runs as the superuser in single-user mode, before the first connection.
// CREATEDB allows a dump to be restored into another database.
const bootstrap = `CREATE ROLE ` + roleName + ` LOGIN CREATEDB;
CREATE DATABASE ` + databaseName + ` OWNER ` + roleName + `;
`

// createCluster creates the cluster under another name and renames it once it is
// complete and synced: the next start after a crash removes a partial one. The caller
// holds the cluster's lock.
func (l *layout) createCluster(ctx context.Context, inst installation, lock *os.File, more map[string]string) error {
	if err := l.root.RemoveAll(newDataName); err != nil {
		return fmt.Errorf("remove an incomplete database: %w", err)
	}
	if err := l.folder(l.root, newDataName); err != nil {
		return err
	}
	initdb := []string{
		"-U", superuser, "-A", "reject", "-k", "--no-sync",
		// Order by code point: an upgrade of the C library cannot damage an index.
		"-E", "UTF8", "--lc-collate=C", "--lc-ctype=C.UTF-8",
	}
	if err := l.run(ctx, inst.path("initdb"), "", lock, initdb...); err != nil {
		return err
	}
	single := []string{"--single", "-c", "exit_on_error=on", "-c", "log_checkpoints=off", "template1"}
	if err := l.run(ctx, inst.path("postgres"), bootstrap, lock, single...); err != nil {
		return err
	}
	if err := l.writeConf(newDataName, more); err != nil {
		return err
	}
	if more["fsync"] != "off" {
		if err := l.run(ctx, inst.path("initdb"), "", lock, "-S"); err != nil {
			return err
		}
	}
	if err := l.root.Rename(newDataName, dataName); err != nil {
		return fmt.Errorf("put the new database in place: %w", err)
	}
	return l.syncFolder()
}

// run runs one of PostgreSQL's programs on the new cluster.
func (l *layout) run(ctx context.Context, program, input string, lock *os.File, args ...string) error {
	folder, err := l.root.Open(newDataName)
	if err != nil {
		return fmt.Errorf("open the new database: %w", err)
	}
	defer folder.Close()
	cmd := l.command(program, newDataName, folder, lock, args...)
	cmd.Stdin = strings.NewReader(input)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return l.explain(program, err)
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("create the database: %s: %w%s", program, err, errorLines(out.String()))
	}
	return nil
}

// command returns a command on the cluster folder. It runs as postgres's user, without
// the server's environment, and inherits the cluster's lock. It receives the folder as
// descriptor 3, since another user may not be able to reach it by its path.
func (l *layout) command(program, folder string, dir, lock *os.File, args ...string) *exec.Cmd {
	path := l.path(folder)
	if l.acc.switched() {
		path = "/proc/self/fd/3"
	}
	flags := []string{"-D", path}
	if len(args) > 0 && args[0] == "--single" { // must come first
		flags = []string{"--single", "-D", path}
		args = args[1:]
	}
	cmd := exec.Command(program, append(flags, args...)...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C"}
	cmd.ExtraFiles = []*os.File{dir, lock}
	cmd.SysProcAttr = l.acc.attributes()
	return cmd
}

// explain adds the usual cause to the error of a program that did not start.
func (l *layout) explain(program string, err error) error {
	err = fmt.Errorf("run %s as %s: %w", program, l.acc.postgres.name, err)
	if l.acc.switched() && errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w (the server must be able to change its user (CAP_SETUID, CAP_SETGID), and %s to reach the program)",
			err, l.acc.postgres.name)
	}
	return err
}

// versionError explains what to do with a cluster of a release that is not installed.
func (l *layout) versionError(made int, have []installation) error {
	var majors []string
	for _, i := range have {
		majors = append(majors, strconv.Itoa(i.major))
	}
	text := fmt.Sprintf(`the database in %s was made by PostgreSQL %d, but only %s is installed.
To keep that version, install PostgreSQL %d as well (Debian, Ubuntu: apt-get install postgresql-%d) and start codehub again.`,
		l.path(dataName), made, strings.Join(majors, " and "), made, made)
	if made < have[0].major {
		text += fmt.Sprintf(`
To move to PostgreSQL %d, install PostgreSQL %d as well, and run: codehub database upgrade
If it cannot be installed any more, restore a dump: codehub database restore FILE`, have[0].major, made)
	}
	return errors.New(text)
}
