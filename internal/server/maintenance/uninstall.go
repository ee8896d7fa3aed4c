package maintenance

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"codehub/internal/arrivals/rollback"
	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/postgres/embedded"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker"
	"codehub/internal/runtime/kube"
	"codehub/internal/server/config"
	"codehub/internal/server/installation"
	"codehub/internal/workspace"
)

// uninstallCmd removes an installation's resources outside its data folder. It has
// the settings of serve, to find the installation.
type uninstallCmd struct {
	config.Config `embed:""`

	Installation string `name:"installation" placeholder:"ID" help:"Installation to remove; does not need its database."`
	Homes        bool   `name:"homes" help:"Also remove the homes."`
	Yes          bool   `name:"yes" short:"y" help:"Skip the confirmation, except for homes."`
	DryRun       bool   `name:"dry-run" help:"List resources without removing them."`
}

// removeHomes confirms the removal of homes.
const removeHomes = "remove homes"

func (c *uninstallCmd) Run(ctx context.Context) error {
	if err := c.Resolve(); err != nil {
		return err
	}
	log := c.Config.Logger(os.Stderr)
	id, release, err := c.claim(ctx, log)
	if err != nil {
		return err
	}
	defer release()
	rt, err := openRuntime(ctx, c.Config, id, log)
	if err != nil {
		return err
	}
	defer rt.Close()
	inv, err := rt.Inventory(ctx)
	if err != nil {
		return err
	}
	fmt.Print(c.inventoryText(id, inv))
	if c.DryRun {
		fmt.Println("Nothing was removed: this was a dry run.")
		return nil
	}
	if err := c.confirm(os.Stderr, bufio.NewReader(os.Stdin), id, len(inv.Homes)); err != nil {
		return err
	}
	removed := 0
	err = rt.Uninstall(ctx, c.Homes, func(i runtime.Item) {
		removed++
		fmt.Printf("Removed %s %s\n", i.Kind, i.Name)
	})
	left := 0
	for _, i := range inv.Keep {
		if i.Kind == "set aside" {
			left++
		}
	}
	for _, i := range inv.Homes {
		if i.Kind == "home" && !c.Homes {
			left++
		}
	}
	fmt.Printf("Removed: %d. Homes and set-aside volumes kept: %d. The data folder %s and the archives are unchanged.\n", removed, left, c.DataDir)
	return err
}

// inventoried is a runtime whose objects can be listed and removed.
type inventoried interface {
	rollback.Runtime
	Inventory(context.Context) (runtime.Inventory, error)
	Uninstall(ctx context.Context, homes bool, gone func(runtime.Item)) error
	Close() error
}

// openRuntime connects to what runs the workspaces of the installation id.
func openRuntime(ctx context.Context, c config.Config, id string, log *slog.Logger) (inventoried, error) {
	if c.Runtime == config.Kubernetes {
		connection, err := c.Cluster.Connect()
		if err != nil {
			return nil, err
		}
		return kube.New(connection, kube.Config{Installation: id, Settings: c.Cluster, Log: log})
	}
	return docker.New(ctx, docker.Config{
		Installation: id, DataDir: c.DataDir, HostDataDir: c.HostDataDir, Settings: c.Docker, Log: log,
	})
}

// claim returns the installation's id, and prevents its servers from leading until
// release is called.
func (c *uninstallCmd) claim(ctx context.Context, log *slog.Logger) (id string, release func(), err error) {
	if c.Installation != "" {
		if !workspace.ValidID(c.Installation) {
			return "", nil, &setting.Problem{Setting: "--installation", Why: fmt.Sprintf("%q is not a UUID", c.Installation), Do: "use the label codehub.installation of its containers and volumes, or in Kubernetes codehub.dev/installation"}
		}
		if c.Runtime == config.Kubernetes { // the data folder is another installation's, if there is one
			return c.Installation, func() {}, nil
		}
		release, err = c.lockData()
		return c.Installation, release, err
	}
	if c.DatabaseURL == "" {
		if _, err := os.Stat(filepath.Join(c.DataDir, "postgres")); errors.Is(err, fs.ErrNotExist) {
			return "", nil, &setting.Problem{Setting: "CODEHUB_DATA_DIR", Why: "there is no database in " + c.DataDir, Do: "set the data folder of the installation, or use --installation"}
		}
	}
	o, err := installation.Open(ctx, c.Config, "codehub-uninstall", log)
	if err != nil {
		return "", nil, err
	}
	if err = o.Alone(ctx); err == nil {
		id, err = o.DB.Installation(ctx)
	}
	if err != nil {
		o.Close()
		return "", nil, err
	}
	return id, o.Close, nil
}

// lockData locks the data folder if it exists.
func (c *uninstallCmd) lockData() (func(), error) {
	if _, err := os.Stat(c.DataDir); errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	lock, err := embedded.LockDir(c.DataDir)
	if used := (*embedded.LockedError)(nil); errors.As(err, &used) {
		return nil, fmt.Errorf("a codehub server is running (pid %d); stop it first", used.PID)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Release() }, nil
}

// confirm asks for confirmation before anything is removed.
func (c *uninstallCmd) confirm(out io.Writer, in *bufio.Reader, id string, homes int) error {
	if !c.Yes {
		answer, err := terminal.Ask(out, in, "Type the installation's id to remove these resources: ")
		if err != nil || strings.TrimSpace(answer) != id {
			return errors.New("nothing was removed: the installation's id was not confirmed")
		}
	}
	if c.Homes && homes > 0 {
		answer, err := terminal.Ask(out, in, fmt.Sprintf("This permanently deletes %s. Type %q to continue: ", homesText(homes), removeHomes))
		if err != nil || strings.TrimSpace(answer) != removeHomes {
			return errors.New("nothing was removed: the removal of homes was not confirmed")
		}
	}
	return nil
}

func homesText(n int) string {
	if n == 1 {
		return "1 home"
	}
	return fmt.Sprintf("%d homes", n)
}

func (c *uninstallCmd) inventoryText(id string, inv runtime.Inventory) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Installation %s\n", id)
	section := func(title string, lists ...[]runtime.Item) {
		rows := [][]string{{title, "NAME", "DETAIL"}}
		for _, list := range lists {
			for _, i := range list {
				rows = append(rows, []string{i.Kind, i.Name, i.Detail})
			}
		}
		if len(rows) > 1 {
			fmt.Fprintf(&b, "\n%s", terminal.Table(rows))
		}
	}
	kept := []runtime.Item{{Kind: "data folder", Name: c.DataDir}, {Kind: "archives", Name: c.ArchiveURL}}
	if c.Homes {
		section("REMOVED", inv.Remove, inv.Homes)
		section("KEPT", inv.Keep, kept)
	} else {
		section("REMOVED", inv.Remove)
		section("KEPT", inv.Homes, inv.Keep, kept)
		if len(inv.Homes) > 0 && c.Runtime == config.Docker {
			fmt.Fprint(&b, "\nThe homes lose the containers that protect them from docker volume prune.\n")
		}
	}
	fmt.Fprintln(&b)
	return b.String()
}
