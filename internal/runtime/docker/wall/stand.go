package wall

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

// ErrDown is a wall that is not there, or not as it was described.
var ErrDown = errors.New("the wall does not stand")

// Stand makes the wall stand as described; one that stands is left alone. What
// is particular to this host is added. It acts on the network namespace of the
// process and needs NET_ADMIN there: without it the error is fs.ErrPermission.
func Stand(s Spec) error {
	s, err := s.onThisHost()
	if err != nil {
		return err
	}
	if err := bridgeIsFiltered(); err != nil {
		return err
	}
	err = check(s)
	if !errors.Is(err, ErrDown) {
		return err
	}
	if err := set(s); err != nil {
		return err
	}
	return check(s)
}

// Check returns nil if the wall stands as described, ErrDown if it does not, or
// why that cannot be told.
func Check(s Spec) error {
	s, err := s.onThisHost()
	if err != nil {
		return err
	}
	return check(s)
}

// Remove takes the wall down.
func Remove(table string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: table}
	c.AddTable(t) // the removal of one that is not there fails
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove nftables table: %w", err)
	}
	return nil
}

// set puts the table in place in one step: there is no moment without it.
func set(s Spec) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: s.Table}
	c.AddTable(t)
	c.DelTable(t)
	c.AddTable(t)
	byName := map[string]*nftables.Chain{}
	for _, chain := range chains(t) {
		byName[chain.Name] = c.AddChain(chain)
	}
	rules := s.rules()
	marks := comments(rules, s)
	for i, r := range rules {
		c.AddRule(&nftables.Rule{
			Table: t, Chain: byName[r.chain], Exprs: r.exprs,
			UserData: userdata.AppendString(nil, userdata.TypeComment, marks[i]),
		})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("set nftables table: %w", err)
	}
	return nil
}

func check(s Spec) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	rules := s.rules()
	marks := comments(rules, s)
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: s.Table}
	for _, want := range chains(t) {
		if !standsIn(all, want) {
			return fmt.Errorf("chain %s of table %s is missing: %w", want.Name, s.Table, ErrDown)
		}
		got, err := c.GetRules(t, want)
		if err != nil {
			return fmt.Errorf("list nftables rules: %w", err)
		}
		n := 0
		for i, r := range rules {
			if r.chain != want.Name {
				continue
			}
			if n >= len(got) || comment(got[n]) != marks[i] {
				return fmt.Errorf("rule %q of table %s is missing: %w", r.words, s.Table, ErrDown)
			}
			n++
		}
		if n != len(got) {
			return fmt.Errorf("table %s has rules that are not the wall's: %w", s.Table, ErrDown)
		}
	}
	return nil
}

func standsIn(all []*nftables.Chain, want *nftables.Chain) bool {
	for _, c := range all {
		if c.Table.Name == want.Table.Name && c.Name == want.Name {
			return c.Hooknum != nil && *c.Hooknum == *want.Hooknum
		}
	}
	return false
}

func comment(r *nftables.Rule) string {
	text, _ := userdata.GetString(r.UserData, userdata.TypeComment)
	return strings.TrimRight(text, "\x00")
}

// bridgeIsFiltered makes sure that packets between two ports of a bridge pass
// the forward chain at all. The engine turns that on for a network without
// traffic between its containers; somebody may have turned it off since.
func bridgeIsFiltered() error {
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		path := "/proc/sys/net/bridge/" + name
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("look whether bridges are filtered: %w", err)
		}
		if strings.TrimSpace(string(raw)) == "1" {
			continue
		}
		if name == "bridge-nf-call-ip6tables" {
			// The network has no IPv6 of its own, only what is link-local.
			continue
		}
		if err := os.WriteFile(path, []byte("1"), 0); err != nil {
			return fmt.Errorf("%s is off, so that workspaces on one bridge reach each other, and cannot be turned on: %w", name, err)
		}
	}
	return nil
}
