package store

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
)

// partSigner signs the URLs of the parts of one upload, which differ in their
// number alone: ten thousand take the client a quarter of a second, all of it
// before a home can be packed.
type partSigner struct {
	url       [2]string // before and after the number, without the signature
	canonical [2]string // likewise, what is signed of the request
	head      string    // of what is signed
	key       []byte
}

// partSigner makes a signer from the URL of part 1. If it would have signed
// that otherwise, it is nil.
func (s *S3) partSigner(first string) *partSigner {
	const number = "&partNumber=1&"
	creds, err := s.core.GetCreds()
	u, malformed := url.Parse(first)
	if err != nil || malformed != nil {
		return nil
	}
	unsigned, signature, ok := strings.Cut(first, "&X-Amz-Signature=")
	q := u.Query()
	credential := strings.SplitN(q.Get("X-Amz-Credential"), "/", 2)
	if !ok || len(credential) != 2 || strings.Count(unsigned, number) != 1 {
		return nil
	}
	scope := credential[1]
	canonical := "PUT\n" + u.EscapedPath() + "\n" + unsigned[strings.Index(unsigned, "?")+1:] +
		"\nhost:" + u.Host + "\n\nhost\nUNSIGNED-PAYLOAD"
	p := &partSigner{
		head: q.Get("X-Amz-Algorithm") + "\n" + q.Get("X-Amz-Date") + "\n" + scope + "\n",
		key:  []byte("AWS4" + creds.SecretAccessKey),
	}
	for part := range strings.SplitSeq(scope, "/") {
		p.key = mac(p.key, part)
	}
	p.url[0], p.url[1], _ = strings.Cut(unsigned, number)
	p.canonical[0], p.canonical[1], _ = strings.Cut(canonical, number)
	if p.sign(1) != unsigned+"&X-Amz-Signature="+signature {
		return nil
	}
	return p
}

// sign returns the signed URL of a part.
func (p *partSigner) sign(n int) string {
	number := "&partNumber=" + strconv.Itoa(n) + "&"
	sum := sha256.Sum256([]byte(p.canonical[0] + number + p.canonical[1]))
	signature := mac(p.key, p.head+hex.EncodeToString(sum[:]))
	return p.url[0] + number + p.url[1] + "&X-Amz-Signature=" + hex.EncodeToString(signature)
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
