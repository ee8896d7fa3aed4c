package maintenance

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"codehub/internal/base/setting"
	"codehub/internal/postgres"
	"codehub/internal/postgres/embedded"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
	"codehub/internal/users/sealed"
)

type secretKeyCmd struct {
	New    secretKeyNewCmd    `cmd:"" help:"Print a new key for CODEHUB_SECRET_KEY_FILE."`
	Rotate secretKeyRotateCmd `cmd:"" help:"Encrypt all secrets with a new key."`
}

type secretKeyNewCmd struct{}

// Help says where the line belongs.
func (secretKeyNewCmd) Help() string {
	return `The file has one key on a line. The first one encrypts, and all decrypt.`
}

func (secretKeyNewCmd) Run(k *kong.Context) error {
	_, line := sealed.NewKey()
	_, err := fmt.Fprintln(k.Stdout, line)
	return err
}

// secretKeyRotateCmd has the settings of serve, to find the installation.
type secretKeyRotateCmd struct {
	config.Config `embed:""`

	Existing bool `help:"Use the first key of the file, and add none."`
}

// Help describes the order on several machines.
func (secretKeyRotateCmd) Help() string {
	return `The command puts a new key at the beginning of the key file and encrypts every value in the database again. Servers may run meanwhile, and need no restart. It can be repeated at any time, also after it was killed. Where servers run on several machines, or the file is read-only: put a line of "codehub secret-key new" at the beginning of the file on each machine first, and then run this command with --existing.`
}

func (c *secretKeyRotateCmd) Run(ctx context.Context, k *kong.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	if c.DatabaseURL == "" && !embedded.Exists(c.DataDir) {
		return &setting.Problem{Setting: "CODEHUB_DATA_DIR", Why: "no codehub has its database in " + c.DataDir,
			Do: "use the settings of serve (CODEHUB_DATA_DIR or CODEHUB_DATABASE_URL)"}
	}
	db, _, release, err := installation.OpenDatabase(ctx, c.Config, c.Logger(os.Stderr))
	if err != nil {
		return err
	}
	defer release()
	keys, err := installation.OpenKeys(c.Config)
	if err != nil {
		return err
	}
	if keys.File() == "" {
		return &setting.Problem{Setting: "CODEHUB_SECRET_KEY_FILE", Why: "it is not set, so the database has nothing that is encrypted", Do: "name a file with a line of `codehub secret-key new`"}
	}
	if !c.Existing {
		if err := onlyHere(ctx, db); err != nil {
			return err
		}
		id, err := keys.Add()
		if err != nil {
			return fmt.Errorf("add a key to %s (with --existing the file stays as it is): %w", keys.File(), err)
		}
		if _, err := fmt.Fprintf(k.Stdout, "The new key %s is the first one in %s.\n", id, keys.File()); err != nil {
			return err
		}
	}
	return rotate(ctx, k, db, keys)
}

// onlyHere refuses to add a key that the servers on other machines do not have.
func onlyHere(ctx context.Context, db *postgres.DB) error {
	list, err := db.Replicas(ctx)
	if err != nil {
		return err
	}
	here, _ := os.Hostname()
	for _, r := range list {
		if r.Alive && r.Hostname != here {
			return fmt.Errorf("a server runs on %s, whose file would lack the new key: put a line of \"codehub secret-key new\" at the beginning of the file on each machine, then use --existing", r.Hostname)
		}
	}
	return nil
}

// rotate seals all values with the first key, and says which other keys are still used.
func rotate(ctx context.Context, k *kong.Context, db *postgres.DB, keys *sealed.Ring) error {
	first := keys.Keys()[0]
	again, unreadable := 0, map[string]int{}
	if err := db.SealedValues(ctx, func(v postgres.SealedValue) error {
		if sealed.KeyOf(v.Value) == first {
			return nil
		}
		plain, err := keys.Open(v.Value, v.Owner)
		if err != nil {
			unreadable[err.Error()]++
			return nil
		}
		defer clear(plain)
		value, err := keys.Seal(plain, v.Owner)
		if err != nil {
			return err
		}
		done, err := db.Reseal(ctx, v, value)
		if done {
			again++
		}
		return err
	}); err != nil {
		return err
	}
	// A server may have sealed a value meanwhile whose file it read just before.
	used, err := db.SealedKeys(ctx)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(k.Stdout, "Values encrypted again: %d. With the key %s now: %d.\n", again, first, used[first]); err != nil {
		return err
	}
	if len(unreadable) > 0 {
		var why []string
		for _, e := range slices.Sorted(maps.Keys(unreadable)) {
			why = append(why, fmt.Sprintf("%d values: %s", unreadable[e], e))
		}
		return fmt.Errorf("some values cannot be decrypted and stay as they are: %s", strings.Join(why, "; "))
	}
	delete(used, first)
	if len(used) > 0 {
		return fmt.Errorf("values with the keys %s were written meanwhile: repeat the command with --existing", strings.Join(slices.Sorted(maps.Keys(used)), ", "))
	}
	if old := keys.Keys()[1:]; len(old) > 0 {
		_, err := fmt.Fprintf(k.Stdout, "The database no longer needs %s. Backups from before now do: keep the old lines with these backups, and remove them from the file.\n", strings.Join(old, ", "))
		return err
	}
	return nil
}
