package wall

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
)

func TestSpecTravels(t *testing.T) {
	t.Parallel()
	want := Spec{
		Table: "t", Bridge: "br-test",
		Deny:        []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")},
		Close:       []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
		Open:        []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")},
		Nameservers: []netip.Addr{netip.MustParseAddr("10.0.0.53")},
		Outward:     []string{"br-lan"},
		Flows:       4096,
		Rate:        200,
	}
	text, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseSpec(text)
	if err != nil {
		t.Fatal(err)
	}
	same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	samePrefix := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, got, same, samePrefix); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "{", "{}", `{"table":"t","bridge":"a-name-of-16-byte"}`, `{"table":"t","bridge":"b","more":1}`} {
		if s, err := ParseSpec(bad); err == nil {
			t.Errorf("ParseSpec(%q) = %+v", bad, s)
		}
	}
}

func TestNameservers(t *testing.T) {
	t.Parallel()
	text := "# comment\nsearch example.com\nnameserver 10.0.0.2\nnameserver 127.0.0.53\nnameserver ::1\n" +
		"nameserver fe80::1%eth0\nnameserver  2001:db8::53 # far\nnameserver ::ffff:10.0.0.3\nnameserver\nnameserver nonsense\n"
	var got []string
	for _, a := range nameservers(strings.NewReader(text)) {
		got = append(got, a.String())
	}
	if diff := cmp.Diff([]string{"10.0.0.2", "fe80::1", "2001:db8::53", "10.0.0.3"}, got); diff != "" {
		t.Errorf("nameservers (-want +got):\n%s", diff)
	}
}

// What is always denied comes first, and then the smallest network.
func TestSmallestNetworkDecides(t *testing.T) {
	t.Parallel()
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, p := range list {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	s := Spec{
		Deny:  prefixes("10.1.2.3/32", "169.254.0.0/16"),
		Close: append(prefixes("10.9.9.0/24", "10.9.9.9/24", "203.0.113.0/24", "10.4.0.0/16"), netip.Prefix{}),
		Open:  prefixes("10.9.0.0/16", "192.168.0.0/16", "10.4.0.0/16"),
	}
	var got []string
	for _, n := range s.scopes() {
		got = append(got, fmt.Sprint(n.prefix, " ", n.open))
	}
	want := []string{
		"169.254.0.0/16 false", "fe80::/10 false", "fd00:ec2::254/128 false", "100.100.100.200/32 false", "168.63.129.16/32 false", "192.0.0.192/32 false",
		"10.1.2.3/32 false",
		"10.9.9.0/24 false", "203.0.113.0/24 false", "10.4.0.0/16 false", "10.9.0.0/16 true", "192.168.0.0/16 true",
		"172.16.0.0/12 false", "100.64.0.0/10 false", "10.0.0.0/8 false", "fc00::/7 false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
}

// The Helm chart denies what the wall denies, as far as it is IPv4.
func TestChartHasSameNetworks(t *testing.T) {
	t.Parallel()
	texts := func(list []netip.Prefix, quote string) (out []string) {
		for _, p := range list {
			if p.Addr().Is4() {
				out = append(out, quote+p.String()+quote)
			}
		}
		return out
	}
	for file, want := range map[string][]string{
		"values.yaml":                            {"deny: [" + strings.Join(texts(private, ""), ", ") + "]"},
		"templates/workspace-networkpolicy.yaml": texts(metadata, `"`),
	} {
		raw, err := os.ReadFile("../../../../deploy/helm/codehub/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range want {
			if !strings.Contains(string(raw), text) {
				t.Errorf("%s has no %s", file, text)
			}
		}
	}
}

func TestDockerNameservers(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]string{
		`{"dns": ["10.0.0.2", "127.0.0.1"], "mtu": 1400}`: "[10.0.0.2]",
		`{"mtu": 1400}`: "[]",
		"":              "[]",
	} {
		if got := fmt.Sprint(dockerNameservers([]byte(config))); got != want {
			t.Errorf("nameservers of %s: %s, want %s", config, got, want)
		}
	}
}

// testSpec is a wall for an interface that does not exist.
func testSpec(t *testing.T) Spec {
	t.Helper()
	s := testSpecOf(fmt.Sprintf("chw%d-%d", os.Getpid()%100000, len(t.Name())))
	t.Cleanup(func() {
		if err := Remove(s.Table); err != nil {
			t.Error(err)
		}
	})
	return s
}

func testSpecOf(name string) Spec {
	return Spec{
		Table: "codehub-test-" + name, Bridge: name,
		Deny:        []netip.Prefix{netip.MustParsePrefix("10.0.0.0/9"), netip.MustParsePrefix("2001:db8::/33")},
		Nameservers: []netip.Addr{netip.MustParseAddr("10.0.0.53"), netip.MustParseAddr("2001:db8::53")},
		Flows:       1000,
		Rate:        100,
	}
}

func TestStandsAgainAfterAnyChange(t *testing.T) {
	t.Parallel()
	s := testSpec(t)
	if err := Check(s); !errors.Is(err, ErrDown) {
		t.Fatalf("before: %v (the tests of the wall need root)", err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: s.Table}
	changes := map[string]func(*nftables.Conn, []*nftables.Chain){
		"the table is removed":  func(c *nftables.Conn, _ []*nftables.Chain) { c.DelTable(table) },
		"the chains are empty":  func(c *nftables.Conn, _ []*nftables.Chain) { c.FlushTable(table) },
		"a rule comes before":   func(c *nftables.Conn, ch []*nftables.Chain) { c.InsertRule(acceptAll(table, ch[1])) },
		"a rule comes after":    func(c *nftables.Conn, ch []*nftables.Chain) { c.AddRule(acceptAll(table, ch[0])) },
		"the first rule is out": func(c *nftables.Conn, ch []*nftables.Chain) { removeRule(t, c, table, ch[0], 0) },
		"a middle rule is out":  func(c *nftables.Conn, ch []*nftables.Chain) { removeRule(t, c, table, ch[1], 3) },
	}
	for name, change := range changes {
		if err := Apply(s); err != nil {
			t.Fatal(err)
		}
		c, err := nftables.New()
		if err != nil {
			t.Fatal(err)
		}
		change(c, chains(table))
		if err := c.Flush(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := Check(s); !errors.Is(err, ErrDown) {
			t.Errorf("%s: Check = %v", name, err)
		}
		for range 2 {
			if err := Apply(s); err != nil {
				t.Errorf("%s: Apply = %v", name, err)
			}
		}
		if err := Check(s); err != nil {
			t.Errorf("%s after Apply: Check = %v", name, err)
		}
	}
}

func acceptAll(table *nftables.Table, chain *nftables.Chain) *nftables.Rule {
	return &nftables.Rule{Table: table, Chain: chain, Exprs: verdict(1)}
}

func removeRule(t *testing.T, c *nftables.Conn, table *nftables.Table, chain *nftables.Chain, n int) {
	t.Helper()
	rules, err := c.GetRules(table, chain)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.DelRule(rules[n]); err != nil {
		t.Fatal(err)
	}
}

func TestAnotherSpecIsAnotherWall(t *testing.T) {
	t.Parallel()
	s := testSpec(t)
	if err := Apply(s); err != nil {
		t.Fatal(err)
	}
	more := s
	more.Deny = append(more.Deny, netip.MustParsePrefix("192.0.2.0/24"))
	if err := Check(more); !errors.Is(err, ErrDown) {
		t.Errorf("Check with one more range = %v", err)
	}
	if err := Apply(more); err != nil {
		t.Error(err)
	}
	if err := Check(s); !errors.Is(err, ErrDown) {
		t.Errorf("Check of the first = %v", err)
	}
	limited := more
	limited.Flows = 0
	if err := Check(limited); !errors.Is(err, ErrDown) {
		t.Errorf("Check with another limit = %v", err)
	}
	if err := Apply(limited); err != nil {
		t.Error(err)
	}
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	sets, err := c.GetSets(&nftables.Table{Family: nftables.TableFamilyINet, Name: s.Table})
	if err != nil || len(sets) != 1 || sets[0].Name != "rate-100" {
		t.Errorf("sets = %+v, %v; want that of the rate alone", sets, err)
	}
}

func TestRemoveTwice(t *testing.T) {
	t.Parallel()
	s := testSpec(t)
	for range 2 {
		if err := Remove(s.Table); err != nil {
			t.Error(err)
		}
	}
}

// Without privileges the error is fs.ErrPermission, so that the caller can use the
// helper.
func TestWithoutPrivileges(t *testing.T) {
	t.Parallel()
	if os.Getenv("WALL_TEST_UNPRIVILEGED") == "1" {
		for name, err := range map[string]error{"Check": Check(testSpecOf("none")), "Stand": Apply(testSpecOf("none"))} {
			if !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s = %v", name, err)
			}
		}
		return
	}
	raw, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "codehub-wall-") // t.TempDir is not readable by other users
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Join(dir, "wall.test")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(bin, raw, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, "-test.run", "^TestWithoutPrivileges$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "WALL_TEST_UNPRIVILEGED=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestWithoutPrivileges") {
		t.Fatalf("as nobody: %v\n%s", err, out)
	}
}
