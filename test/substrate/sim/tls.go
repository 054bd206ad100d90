package sim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/atewf/atewf/test/substrate/proto"
)

// Certificates makes an authority and a serving certificate under it for the names.
func Certificates(names ...string) (ca []byte, cert tls.Certificate, err error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, cert, err
	}
	now := time.Now()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "simulated service DNS authority"}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, cert, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, cert, err
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(now.UnixNano() + 1), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, NotBefore: tmpl.NotBefore,
		NotAfter: tmpl.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, tmpl, &key.PublicKey, caKey)
	if err != nil {
		return nil, cert, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Local is a whole control plane in this process, on a loopback address, for tests that need no cluster.
type Local struct {
	Store    *Store
	Server   *Server
	Endpoint string
	CA       []byte
	Token    string
	grpc     *grpc.Server
}

// LocalToken is the token that a Local takes.
const LocalToken = "a-good-token"

// NewLocal starts one. change may alter the Server before it serves.
func NewLocal(plane Plane, gen proto.Generation, o Options, change ...func(*Server)) (*Local, error) {
	store, err := NewStore(plane, o)
	if err != nil {
		return nil, err
	}
	srv, err := NewServer(store, gen, func(_ context.Context, token string) error {
		if token != LocalToken {
			return errors.New("the token is not good")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, c := range change {
		c(srv)
	}
	ca, cert, err := Certificates("api.ate-system.svc")
	if err != nil {
		return nil, fmt.Errorf("making certificates: %w", err)
	}
	g := NewGRPC(cert)
	srv.Register(g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { _ = g.Serve(l) }() // it returns when the server is stopped
	return &Local{Store: store, Server: srv, Endpoint: l.Addr().String(), CA: ca, Token: LocalToken, grpc: g}, nil
}

// Stop ends it.
func (l *Local) Stop() { l.grpc.Stop() }

// NewGRPC makes a gRPC server with the certificate.
func NewGRPC(cert tls.Certificate) *grpc.Server {
	return grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})))
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
