package substrate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

const (
	// ServerName is the name on the serving certificate of the Control API.
	ServerName = "api.ate-system.svc"
	// Audience is the audience that a token for the Control API must have.
	Audience = "api.ate-system.svc"
	// SignerName and BundleSelector pick the ClusterTrustBundles that hold the authority of that certificate.
	SignerName     = "servicedns.podcert.ate.dev/identity"
	BundleSelector = "podcert.ate.dev/canarying=live"

	// pageSize is the largest page that the server gives.
	pageSize = 1000
	// maxMessage allows for a page of a thousand actors with long records, which may pass gRPC's default of 4 MiB.
	maxMessage = 64 << 20
)

// Options say how to reach a Control API.
type Options struct {
	// Endpoint is host:port, for example api.ate-system.svc:443.
	Endpoint string
	// Name is the name that the certificate must carry; ServerName when empty.
	Name string
	// CA holds PEM certificates. There is no plaintext and no unverified mode.
	CA []byte
	// Token is asked before every call, so that a token which is renewed on disk is used as soon as it is there.
	Token func(context.Context) (string, error)
	// AcceptFields are fields of a status that this version does not know and shall ignore instead of stopping at them.
	AcceptFields []string
}

// Client calls a Control API by the names of its fields, in whatever generation the server serves.
type Client struct {
	conn   *grpc.ClientConn
	schema *schema
}

// serviceConfig lets gRPC repeat what could not reach the server at all. Aborted is left to the caller, who knows
// whether the call still makes sense.
const serviceConfig = `{"methodConfig":[{"name":[{"service":"ateapi.Control"}],"retryPolicy":{` +
	`"maxAttempts":4,"initialBackoff":"0.2s","maxBackoff":"2s","backoffMultiplier":2,"retryableStatusCodes":["UNAVAILABLE"]}}]}`

// Dial connects to a Control API and learns its descriptors by reflection, or takes the built-in ones where the server
// has no reflection. It fails when the API lacks a field without which nobody could tell who is on a node.
func Dial(ctx context.Context, o Options) (*Client, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(o.CA) {
		return nil, errors.New("trust bundle of the control API: no certificate in it; check the ClusterTrustBundle of signer " + SignerName)
	}
	name := o.Name
	if name == "" {
		name = ServerName
	}
	conn, err := grpc.NewClient(o.Endpoint,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS13})),
		grpc.WithPerRPCCredentials(bearer{o.Token}),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.WithUserAgent("atewf"),
	)
	if err != nil {
		return nil, fmt.Errorf("connecting to the control API at %s: %w", o.Endpoint, err)
	}
	sch, err := learn(ctx, conn, o.AcceptFields)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("control API at %s: %w", o.Endpoint, err)
	}
	return &Client{conn: conn, schema: sch}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Reflected reports whether the server described its API itself.
func (c *Client) Reflected() bool { return c.schema.reflected }

// Workers lists all workers, page by page. The list is soft: entries may be missed or repeated while things move.
func (c *Client) Workers(ctx context.Context) ([]Worker, error) {
	var out []Worker
	err := c.pages(ctx, "ListWorkers", "workers", func(m protoreflect.Message) error {
		w, err := c.schema.worker(m)
		out = append(out, w)
		return err
	})
	return out, err
}

// EachActor calls fn with every actor of every atespace, page by page, and stops at its first error. The list is soft:
// entries may be missed or repeated while things move.
func (c *Client) EachActor(ctx context.Context, fn func(Actor) error) error {
	return c.pages(ctx, "ListActors", "actors", func(m protoreflect.Message) error {
		a, err := c.schema.actor(m)
		if err != nil {
			return err
		}
		return fn(a)
	})
}

// Actor reads one actor.
func (c *Client) Actor(ctx context.Context, ref Ref) (Actor, error) {
	m, err := c.call(ctx, "GetActor", "actor", ref)
	if err != nil {
		return Actor{}, fmt.Errorf("reading actor %s: %w", ref, err)
	}
	return c.schema.actor(m)
}

// Suspend asks for an actor to be suspended and returns it as it is afterwards. The call returns when the snapshot is
// uploaded, which the server allows ten minutes; give it more than that. An actor that is left SUSPENDING goes on only
// when it is called again.
func (c *Client) Suspend(ctx context.Context, ref Ref) (Actor, error) {
	m, err := c.call(ctx, "SuspendActor", "actor", ref)
	if err != nil {
		return Actor{}, fmt.Errorf("suspending actor %s: %w", ref, err)
	}
	f := m.Descriptor().Fields().ByName("actor")
	if f == nil || f.Message() == nil {
		return Actor{}, fmt.Errorf("suspending actor %s: the answer has no actor in it", ref)
	}
	return c.schema.actor(m.Get(f).Message())
}

// Drain takes a worker out of service for new actors, for good. To drain it again changes nothing.
func (c *Client) Drain(ctx context.Context, name string) (Worker, error) {
	m, err := c.call(ctx, "DrainWorker", "worker", Ref{Name: name})
	if err != nil {
		return Worker{}, fmt.Errorf("draining worker %s: %w", name, err)
	}
	return c.schema.worker(m)
}

// ErrNoDrain says that a Control API does not serve DrainWorker.
var ErrNoDrain = errors.New("the control API does not serve DrainWorker; this release of Agent Substrate cannot be rolled, it needs a fresh install")

// ServesDrain returns nil when DrainWorker really works, ErrNoDrain when it does not, and any other error when it cannot be
// told. Some builds list it and answer Unimplemented, so it is called
// with a name that no worker can have.
func (c *Client) ServesDrain(ctx context.Context) error {
	_, err := c.Drain(ctx, "00000000-0000-0000-0000-000000000000")
	switch status.Code(err) {
	case codes.NotFound:
		return nil
	case codes.Unimplemented:
		return ErrNoDrain
	}
	return err
}

// Assigned lists the actors that a worker holds, where the server serves ListWorkerActorAssignments. served is false
// where it does not, and then only the list of all actors can tell.
func (c *Client) Assigned(ctx context.Context, worker string) (held []Ref, served bool, err error) {
	if c.schema.service.Methods().ByName("ListWorkerActorAssignments") == nil {
		return nil, false, nil
	}
	err = c.pagesOf(ctx, "ListWorkerActorAssignments", "actor_assignments", &Ref{Name: worker}, func(m protoreflect.Message) error {
		ref := sub(m, "actor")
		held = append(held, Ref{Atespace: str(ref, "atespace"), Name: str(ref, "name")})
		return nil
	})
	switch status.Code(err) {
	case codes.OK:
		return held, true, nil
	case codes.Unimplemented:
		return nil, false, nil
	case codes.NotFound:
		return nil, true, nil
	}
	return nil, false, fmt.Errorf("listing the actors of worker %s: %w", worker, err)
}

// call sends a request that names one object and returns the answer.
func (c *Client) call(ctx context.Context, method string, field protoreflect.Name, ref Ref) (protoreflect.Message, error) {
	md, err := c.schema.method(method)
	if err != nil {
		return nil, err
	}
	req := dynamicpb.NewMessage(md.Input())
	if err := setRef(req, field, ref); err != nil {
		return nil, fmt.Errorf("calling %s: %w", method, err)
	}
	return c.invoke(ctx, md, req)
}

// setRef fills the object reference of a request. Empty parts are not set, so that the server sees no field it may
// refuse.
func setRef(req *dynamicpb.Message, field protoreflect.Name, ref Ref) error {
	f := req.Descriptor().Fields().ByName(field)
	if f == nil || f.Message() == nil {
		return fmt.Errorf("the request has no field %q; this version of atewf does not know this release of Agent Substrate", field)
	}
	obj := req.Mutable(f).Message()
	for name, value := range map[protoreflect.Name]string{"atespace": ref.Atespace, "name": ref.Name} {
		if of := f.Message().Fields().ByName(name); of != nil && value != "" {
			obj.Set(of, protoreflect.ValueOfString(value))
		}
	}
	return nil
}

func (c *Client) invoke(ctx context.Context, md protoreflect.MethodDescriptor, req *dynamicpb.Message) (protoreflect.Message, error) {
	resp := dynamicpb.NewMessage(md.Output())
	if err := c.conn.Invoke(ctx, fmt.Sprintf("/%s/%s", md.Parent().FullName(), md.Name()), req, resp); err != nil {
		return nil, err
	}
	return resp, nil
}

// pages calls a list method that lists everything.
func (c *Client) pages(ctx context.Context, method string, field protoreflect.Name, fn func(protoreflect.Message) error) error {
	return c.pagesOf(ctx, method, field, nil, fn)
}

// pagesOf calls a list method, of one worker where one is given, until it gives no further token. A page may be short or
// empty although more follow.
func (c *Client) pagesOf(ctx context.Context, method string, field protoreflect.Name, worker *Ref, fn func(protoreflect.Message) error) error {
	md, err := c.schema.method(method)
	if err != nil {
		return err
	}
	in, out := md.Input().Fields(), md.Output().Fields()
	items, next := out.ByName(field), out.ByName("next_page_token")
	if items == nil || !items.IsList() || next == nil {
		return fmt.Errorf("the answer of %s has no list %q with a next_page_token; this version of atewf does not know this release of Agent Substrate", method, field)
	}
	token := ""
	for {
		req := dynamicpb.NewMessage(md.Input())
		if worker != nil {
			if err := setRef(req, "worker", *worker); err != nil {
				return fmt.Errorf("calling %s: %w", method, err)
			}
		}
		if f := in.ByName("page_size"); f != nil {
			req.Set(f, protoreflect.ValueOfInt32(pageSize))
		}
		if f := in.ByName("page_token"); f != nil && token != "" {
			req.Set(f, protoreflect.ValueOfString(token))
		}
		resp, err := c.invoke(ctx, md, req)
		if err != nil {
			return fmt.Errorf("calling %s: %w", method, err)
		}
		list := resp.Get(items).List()
		for i := range list.Len() {
			if err := fn(list.Get(i).Message()); err != nil {
				return err
			}
		}
		again := resp.Get(next).String()
		if again == "" {
			return nil
		}
		if again == token {
			return fmt.Errorf("calling %s: the server gave the same page token twice, so the list has no end", method)
		}
		token = again
	}
}

// bearer sends the token of the moment with each call, and only over TLS.
type bearer struct {
	token func(context.Context) (string, error)
}

func (b bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	t, err := b.token(ctx)
	if err != nil {
		return nil, status.Errorf(codes.Unauthenticated, "token for the control API: %v", err)
	}
	return map[string]string{"authorization": "Bearer " + t}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }
