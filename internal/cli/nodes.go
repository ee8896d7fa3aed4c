package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"codehub/client"
	"codehub/internal/cli/terminal"
)

type nodesCmd struct {
	Dead nodesDeadCmd `cmd:"" help:"Confirm that a node is dead."`
}

// nodesDeadCmd lets the workspaces of a lost node start elsewhere.
type nodesDeadCmd struct {
	serverFlags
	terminal.Format
	Node string `arg:"" help:"The node, as codehub status lists it."`
	Yes  bool   `short:"y" help:"Skip the confirmation."`
}

// Help says what the caller guarantees.
func (nodesDeadCmd) Help() string {
	return `The workspaces of the node start on other nodes. Only confirm it if the machine is off, or will not run again
with its present state: if a process there still runs, it writes to the same files as the new one.`
}

// Run asks, unless it was told not to, and confirms it.
func (n nodesDeadCmd) Run(ctx context.Context, k *kong.Context, c *client.Client) error {
	if !n.Yes {
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return errors.New("no terminal to ask in: give --yes if the machine is off for good")
		}
		answer, err := terminal.Ask(k.Stderr, bufio.NewReader(os.Stdin), fmt.Sprintf("Is the machine of node %s off for good? [y/N] ", n.Node))
		if err != nil {
			return err
		}
		if !strings.EqualFold(strings.TrimSpace(answer), "y") {
			return errors.New("nothing was confirmed")
		}
	}
	dead, err := c.ConfirmDeadNode(ctx, n.Node)
	if err != nil {
		return err
	}
	return n.Print(k.Stdout, dead, fmt.Sprintf("Removed from node %s: %d Pods. Their workspaces can start on other nodes.\n", dead.Name, dead.Removed))
}
