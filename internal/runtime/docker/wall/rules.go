package wall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	chainInput   = "input"
	chainForward = "forward"
)

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

	// To the host: only replies, on any of its addresses.
	add(chainInput, "answers accept", from, replyPackets(), accept)
	add(chainInput, "nd accept", from, neighbourDiscovery(), accept)
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
	for _, ns := range s.Nameservers {
		for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			add(chainForward, fmt.Sprintf("dns %s/%d accept", ns, proto), from, destination(netip.PrefixFrom(ns, ns.BitLen())), port(proto, 53), accept)
		}
	}
	// A host address that is a container's published port.
	add(chainForward, "dnat drop", from, dnatPackets(), drop)
	for _, p := range s.denied() {
		add(chainForward, "deny "+p.String(), from, destination(p), drop)
	}
	// Other container and virtual machine networks on this host, under any name,
	// existing or future. Docker isolates its own, but not at every moment, and
	// others are not isolated at all.
	for _, b := range s.Outward {
		add(chainForward, "outward "+b+" accept", from, iface(expr.MetaKeyOIFNAME, b), accept)
	}
	add(chainForward, "bridges drop", from, toBridge(), drop)
	return out
}

// comments returns the comment of each rule: its position and a digest of the whole
// wall.
func comments(rules []rule, s Spec) []string {
	sum := sha256.New()
	fmt.Fprintln(sum, s.Table, s.Bridge)
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

func ctBits(key expr.CtKey, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits),
			Xor:  binaryutil.NativeEndian.PutUint32(0),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
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
