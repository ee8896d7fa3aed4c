package wall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	chainInput   = "input"
	chainForward = "forward"
)

// setSize is the greatest number of addresses in a set. A bridge has at most 1,023
// ports, and an address without flows leaves the set.
const setSize = 1 << 16

// flowAge is how long the rate of an address is remembered. Its tokens are full
// again long before that.
const flowAge = time.Minute

// rule is one nftables rule.
type rule struct {
	chain string
	text  string // the rule in nft's syntax; part of the comment that Check compares
	exprs []expr.Any
}

// rules returns the wall's rules in order.
//
// Replies are recognized by conntrack's direction and not by the state
// "established", so that connections that a workspace opened while the wall was
// missing are cut off as well.
func (s Spec) rules() []rule {
	var out []rule
	add := func(chain, words string, parts ...[]expr.Any) {
		var all []expr.Any
		for _, p := range parts {
			all = append(all, p...)
		}
		out = append(out, rule{chain, words, all})
	}
	from, to := iface(expr.MetaKeyIIFNAME, s.Bridge), iface(expr.MetaKeyOIFNAME, s.Bridge)
	accept, drop := verdict(expr.VerdictAccept), verdict(expr.VerdictDrop)

	limit := func(chain string) {
		if s.Rate > 0 {
			add(chain, fmt.Sprintf("new update @%s { saddr limit rate over %d/second burst %d } drop", s.rateSet(), s.Rate, s.burst()),
				from, newFlows(), perAddress(s.rateSet(), unix.NFT_DYNSET_OP_UPDATE, flowAge,
					&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(s.Rate), Unit: expr.LimitTimeSecond, Burst: s.burst(), Over: true}), drop)
		}
		if s.Flows > 0 {
			add(chain, fmt.Sprintf("new add @%s { saddr ct count over %d } drop", s.flowSet(), s.Flows),
				from, newFlows(), perAddress(s.flowSet(), unix.NFT_DYNSET_OP_ADD, 0,
					&expr.Connlimit{Count: s.Flows, Flags: expr.NFT_CONNLIMIT_F_INV}), drop)
		}
	}

	// To the host: only replies, on any of its addresses.
	add(chainInput, "answers accept", from, replyPackets(), accept)
	add(chainInput, "nd accept", from, neighbourDiscovery(), accept)
	limit(chainInput)
	for _, ns := range s.Nameservers {
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			add(chainInput, fmt.Sprintf("dns %s/%d accept", ns, proto), from, destination(netip.PrefixFrom(ns, ns.BitLen())), port(proto, 53), accept)
		}
	}
	add(chainInput, "drop", from, drop)

	// Through the host.
	add(chainForward, "answers accept", from, replyPackets(), accept)
	add(chainForward, "neighbour drop", from, to, drop)
	// Packets from elsewhere to a workspace are dropped unless they are replies.
	// The proxy's packets come from the host itself and are not forwarded.
	add(chainForward, "strangers drop", to, originalPackets(), drop)
	limit(chainForward)
	for _, ns := range s.Nameservers {
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			add(chainForward, fmt.Sprintf("dns %s/%d accept", ns, proto), from, destination(netip.PrefixFrom(ns, ns.BitLen())), port(proto, 53), accept)
		}
	}
	// A host address that is a container's published port.
	add(chainForward, "dnat drop", from, dnatPackets(), drop)
	// Other container and virtual machine networks on this host, under any name,
	// existing or future. Docker isolates its own, but not at every moment, and
	// others are not isolated at all.
	bridges := [][]expr.Any{from, toBridge()}
	for _, b := range s.Outward {
		bridges = append(bridges, notIface(expr.MetaKeyOIFNAME, b))
	}
	add(chainForward, "bridges drop", append(bridges, drop)...)
	for _, n := range s.scopes() {
		if n.open {
			add(chainForward, "allow "+n.prefix.String(), from, destination(n.prefix), accept)
			continue
		}
		add(chainForward, "deny "+n.prefix.String(), from, destination(n.prefix), drop)
	}
	return out
}

// comments returns the comment of each rule: its position and a digest of the whole
// wall.
func comments(rules []rule, s Spec) []string {
	sum := sha256.New()
	fmt.Fprintln(sum, s.Table, s.Bridge, s.Outward) // a comment may be too short for the latter
	for _, r := range rules {
		fmt.Fprintln(sum, r.chain, r.text)
	}
	digest := hex.EncodeToString(sum.Sum(nil)[:6])
	out := make([]string, len(rules))
	for i, r := range rules {
		out[i] = fmt.Sprintf("codehub %s %d/%d %s", digest, i+1, len(rules), r.text)
	}
	return out
}

func verdict(k expr.VerdictKind) []expr.Any {
	return []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: k}}
}

// iface matches the name or kind of an interface.
func iface(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, 16)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}

func notIface(key expr.MetaKey, name string) []expr.Any {
	exprs := iface(key, name)
	exprs[1].(*expr.Cmp).Op = expr.CmpOpNeq
	return exprs
}

// toBridge matches packets that leave through any bridge.
func toBridge() []expr.Any {
	const keyOutKind = 27 // NFT_META_OIFKIND, since Linux 5.1
	return iface(keyOutKind, "bridge")
}

// replyPackets matches packets of connections that the other side opened.
func replyPackets() []expr.Any {
	return append(ctBits(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), direction(1)...)
}

// originalPackets matches packets from the side that opened the connection.
func originalPackets() []expr.Any { return direction(0) }

func direction(d byte) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{d}},
	}
}

// dnatPackets matches connections whose destination address was rewritten on
// arrival.
func dnatPackets() []expr.Any {
	const statusDNAT = 1 << 5 // IPS_DST_NAT
	return ctBits(expr.CtKeySTATUS, statusDNAT)
}

// ctBits matches if any of the bits is set.
func ctBits(key expr.CtKey, bits uint32) []expr.Any { return ctBitsAre(expr.CmpOpNeq, key, bits) }

// ctBitsAre compares the bits with zero.
func ctBitsAre(op expr.CmpOp, key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits),
			Xor:  binaryutil.NativeEndian.PutUint32(0),
		},
		&expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

// newFlows matches the first IPv4 packet of each flow, before conntrack stores the
// flow. Later packets do not match: those of a flow without a reply are in the
// state "new" as well, and each would be counted. A fragmented packet is put
// together before that.
func newFlows() []expr.Any {
	const statusConfirmed = 1 << 3 // IPS_CONFIRMED
	return append([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.NFPROTO_IPV4}},
	}, ctBitsAre(expr.CmpOpEq, expr.CtKeySTATUS, statusConfirmed)...)
}

// perAddress evaluates e for the packet's source address, with a state that is kept
// in the set. A workspace cannot send packets with another source address.
func perAddress(set string, operation uint32, timeout time.Duration, e expr.Any) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
		&expr.Dynset{SrcRegKey: 1, SetName: set, Operation: operation, Timeout: timeout, Exprs: []expr.Any{e}},
	}
}

func neighbourDiscovery() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{133}, ToData: []byte{136}},
	}
}

func destination(p netip.Prefix) []expr.Any {
	family, offset, size := byte(unix.NFPROTO_IPV4), uint32(16), uint32(4)
	if p.Addr().Is6() {
		family, offset, size = unix.NFPROTO_IPV6, 24, 16
	}
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{family}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func port(proto byte, number uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(number)},
	}
}

func chains(t *nftables.Table) []*nftables.Chain {
	accept := nftables.ChainPolicyAccept
	return []*nftables.Chain{
		{Name: chainInput, Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &accept},
		{Name: chainForward, Table: t, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &accept},
	}
}

// sets are the sets of the limits. Their names contain the limits, since an address
// that is in a set keeps the limit with which it was added.
func (s Spec) sets(t *nftables.Table) []*nftables.Set {
	var out []*nftables.Set
	if s.Rate > 0 {
		out = append(out, &nftables.Set{
			Table: t, Name: s.rateSet(), KeyType: nftables.TypeIPAddr, KeyByteOrder: binaryutil.BigEndian,
			Dynamic: true, HasTimeout: true, Size: setSize,
		})
	}
	if s.Flows > 0 {
		out = append(out, &nftables.Set{
			Table: t, Name: s.flowSet(), KeyType: nftables.TypeIPAddr, KeyByteOrder: binaryutil.BigEndian,
			Dynamic: true, Size: setSize,
		})
	}
	return out
}

func (s Spec) rateSet() string { return fmt.Sprintf("rate-%d", s.Rate) }
func (s Spec) flowSet() string { return fmt.Sprintf("flows-%d", s.Flows) }

// burst is how many flows a workspace may open at once: a page with many parts, or
// the download of many packages, opens some hundreds.
func (s Spec) burst() uint32 { return 5 * s.Rate }
