package wall

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

// ErrDown means that the wall is missing or differs from its spec.
var ErrDown = errors.New("network isolation is missing or was changed")

// Apply creates the wall described by s, with this host's name servers and bridges
// added. A wall that is intact is left alone. It changes the network namespace of
// the process and needs NET_ADMIN in it; without that the error is
// fs.ErrPermission.
func Apply(s Spec) error {
	s, err := s.withHostState()
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

// Check returns nil if the wall is intact, ErrDown if it is not, or the error that
// prevented the check.
func Check(s Spec) error {
	s, err := s.withHostState()
	if err != nil {
		return err
	}
	return check(s)
}

// Remove removes the wall.
func Remove(table string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: table}
	c.AddTable(t) // deleting a missing table fails
	c.DelTable(t)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove nftables table: %w", err)
	}
	return nil
}

// numbering is held while sets are added: the library numbers those of all connections in one
// variable without a lock, and two sets of a transaction could get the same number.
var numbering sync.Mutex

// set replaces the rules in one transaction, so that the wall is never missing. It
// keeps what the limits have counted, or else a workspace could open its flows
// again after every change of the rules. A table that does not allow that is
// replaced as a whole.
func set(s Spec) error {
	numbering.Lock()
	defer numbering.Unlock()
	if err := replace(s, true); err == nil {
		return nil
	}
	if err := replace(s, false); err != nil {
		return fmt.Errorf("set nftables table: %w", err)
	}
	return nil
}

// replace sets the rules, and with keep leaves those sets alone that the rules use.
func replace(s Spec, keep bool) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := &nftables.Table{Family: nftables.TableFamilyINet, Name: s.Table}
	var kept []string
	c.AddTable(t) // deleting a missing table fails
	if keep {
		if kept, err = clearTable(c, t, s); err != nil {
			return err
		}
	} else {
		c.DelTable(t)
		c.AddTable(t)
	}
	for _, set := range s.sets(t) {
		if slices.Contains(kept, set.Name) {
			continue
		}
		if err := c.AddSet(set, nil); err != nil {
			return err
		}
	}
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
	return c.Flush()
}

// clearTable removes what the table has except the sets of s, whose names it
// returns.
func clearTable(c *nftables.Conn, t *nftables.Table, s Spec) (kept []string, err error) {
	all, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return nil, err
	}
	var present []*nftables.Chain
	for _, chain := range all {
		if chain.Table.Name == t.Name {
			present = append(present, chain)
		}
	}
	if len(present) == 0 {
		return nil, errors.New("the table is empty")
	}
	sets, err := c.GetSets(t)
	if err != nil {
		return nil, err
	}
	c.FlushTable(t)
	for _, chain := range present {
		c.DelChain(chain)
	}
	wanted := s.sets(t)
	for _, set := range sets {
		if slices.ContainsFunc(wanted, func(w *nftables.Set) bool { return sameSet(w, set) }) {
			kept = append(kept, set.Name)
			continue
		}
		c.DelSet(set)
	}
	return kept, nil
}

func sameSet(a, b *nftables.Set) bool {
	return a.Name == b.Name && a.Dynamic == b.Dynamic && a.HasTimeout == b.HasTimeout && a.KeyType.Name == b.KeyType.Name && !b.IsMap
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
		if !hasChain(all, want) {
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
				return fmt.Errorf("rule %q of table %s is missing: %w", r.text, s.Table, ErrDown)
			}
			n++
		}
		if n != len(got) {
			return fmt.Errorf("table %s has rules that are not the wall's: %w", s.Table, ErrDown)
		}
	}
	return nil
}

func hasChain(all []*nftables.Chain, want *nftables.Chain) bool {
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

// bridgeIsFiltered ensures that packets between two ports of a bridge pass the
// forward chain. Docker enables that for a network without traffic between its
// containers; another program may have disabled it.
func bridgeIsFiltered() error {
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		path := "/proc/sys/net/bridge/" + name
		raw, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("check bridge filtering: %w", err)
		}
		if strings.TrimSpace(string(raw)) == "1" {
			continue
		}
		if name == "bridge-nf-call-ip6tables" {
			// The network has only link-local IPv6 addresses.
			continue
		}
		if err := os.WriteFile(path, []byte("1"), 0); err != nil {
			return fmt.Errorf("cannot enable %s, without which workspaces on the same bridge can reach each other: %w", name, err)
		}
	}
	return nil
}
