package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/atewf/atewf/test/substrate/proto"
)

// Server serves the Control API of one generation over a Store.
type Server struct {
	store *Store
	gen   proto.Generation
	file  protoreflect.FileDescriptor
	// Authenticate says whether a bearer token is good. It must be set.
	Authenticate func(ctx context.Context, token string) error
	// NoReflection hides the description of the API.
	NoReflection bool
	// Unserved are methods that are described and answer Unimplemented.
	Unserved map[string]bool
}

// NewServer makes a Server.
func NewServer(store *Store, gen proto.Generation, authenticate func(context.Context, string) error) (*Server, error) {
	fd, err := proto.Load(context.Background(), gen)
	if err != nil {
		return nil, err
	}
	return &Server{store: store, gen: gen, file: fd, Authenticate: authenticate, Unserved: map[string]bool{}}, nil
}

// Register adds the API, and its description unless NoReflection is set, to a gRPC server.
func (s *Server) Register(g *grpc.Server) {
	svc := s.file.Services().Get(0)
	desc := grpc.ServiceDesc{ServiceName: string(svc.FullName()), HandlerType: (*any)(nil), Metadata: s.file.Path()}
	for i := range svc.Methods().Len() {
		md := svc.Methods().Get(i)
		desc.Methods = append(desc.Methods, grpc.MethodDesc{MethodName: string(md.Name()), Handler: func(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return s.handle(ctx, md, dec)
		}})
	}
	g.RegisterService(&desc, struct{}{})
	if s.NoReflection {
		return
	}
	files := &protoregistry.Files{}
	var add func(fd protoreflect.FileDescriptor)
	add = func(fd protoreflect.FileDescriptor) {
		for i := range fd.Imports().Len() {
			add(fd.Imports().Get(i).FileDescriptor)
		}
		if _, err := files.FindFileByPath(fd.Path()); err == nil {
			return
		}
		// A copy, because a file that the compiler made answers imports with placeholders.
		made, err := protodesc.NewFile(protodesc.ToFileDescriptorProto(fd), files)
		if err == nil {
			err = files.RegisterFile(made)
		}
		if err != nil { // the files are embedded and compiled
			panic(err)
		}
	}
	add(s.file)
	reflectpb.RegisterServerReflectionServer(g, reflection.NewServerV1(reflection.ServerOptions{Services: g, DescriptorResolver: files}))
}

// object is a request or an answer as JSON has it.
type object = map[string]any

func (s *Server) handle(ctx context.Context, md protoreflect.MethodDescriptor, dec func(any) error) (resp any, err error) {
	method := string(md.Name())
	req := dynamicpb.NewMessage(md.Input())
	if err := dec(req); err != nil {
		return nil, err
	}
	raw, err := protojson.Marshal(req)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	in := object{}
	if err := json.Unmarshal(raw, &in); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	name := objectName(in)
	defer func() { s.store.record(method, name, err) }()

	if err := s.authenticate(ctx); err != nil {
		return nil, err
	}
	if s.gen != proto.Runbook && len(req.GetUnknown()) > 0 {
		return nil, status.Errorf(codes.InvalidArgument, "unknown fields in %s", md.Input().Name())
	}
	if s.Unserved[method] {
		return nil, status.Errorf(codes.Unimplemented, "method %s not implemented", method)
	}
	fault, err := s.faultOf(ctx, method, name)
	if err != nil {
		return nil, err
	}
	out, err := s.serve(ctx, method, in)
	if err != nil {
		return nil, err
	}
	if fault != nil && fault.After {
		return nil, status.Error(code(fault.Code), "the answer was lost")
	}
	b, err := json.Marshal(out)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	msg := dynamicpb.NewMessage(md.Output())
	// What this generation has no field for is left out.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, msg); err != nil {
		return nil, status.Errorf(codes.Internal, "making the answer of %s: %v", method, err)
	}
	return msg, nil
}

func (s *Server) faultOf(ctx context.Context, method, name string) (*Fault, error) {
	s.store.mu.Lock()
	f := s.store.take(func(f *Fault) bool {
		return !f.Stall && !f.Hide && f.State == "" && f.Land == "" && (f.Method == "" || f.Method == method) && (f.Object == "" || f.Object == name)
	})
	s.store.mu.Unlock()
	if f == nil {
		return nil, nil
	}
	if f.Delay > 0 {
		if err := sleep(ctx, f.Delay); err != nil {
			return nil, status.FromContextError(err).Err()
		}
	}
	if f.Code != "" && !f.After {
		return nil, status.Errorf(code(f.Code), "%s fails because it was told to", method)
	}
	return f, nil
}

func (s *Server) authenticate(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	for _, h := range md.Get("authorization") {
		if token, ok := strings.CutPrefix(h, "Bearer "); ok {
			if err := s.Authenticate(ctx, token); err != nil {
				return status.Error(codes.Unauthenticated, err.Error())
			}
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, "no bearer token")
}

// objectName is the actor or worker that a request is about.
func objectName(in object) string {
	if a, ok := in["actor"].(object); ok {
		if m, ok := a["metadata"].(object); ok {
			a = m
		}
		return fmt.Sprintf("%v/%v", text(a, "atespace"), text(a, "name"))
	}
	if w, ok := in["worker"].(object); ok {
		return text(w, "name")
	}
	return ""
}

func text(o object, key string) string { s, _ := o[key].(string); return s }

func (s *Server) serve(ctx context.Context, method string, in object) (any, error) {
	name := objectName(in)
	if a, ok := in["actor"].(object); ok && method != "CreateActor" && (text(a, "atespace") == "" || text(a, "name") == "") {
		return nil, status.Error(codes.InvalidArgument, "an actor is named by atespace and name")
	}
	if w, ok := in["worker"].(object); ok && text(w, "atespace") != "" {
		return nil, status.Error(codes.InvalidArgument, "a worker has no atespace")
	}
	wrap := func(a Actor, err error) (any, error) {
		if err != nil {
			return nil, err
		}
		return object{"actor": s.actor(a)}, nil
	}
	switch method {
	case "GetActor":
		s.store.mu.Lock()
		a := s.store.Actors[name]
		s.store.mu.Unlock()
		if a == nil {
			return nil, status.Errorf(codes.NotFound, "actor %s not found", name)
		}
		return s.actor(s.store.copyOf(a)), nil
	case "CreateActor":
		a := in["actor"].(object)
		m, _ := a["metadata"].(object)
		sel := map[string]string{}
		if ws, ok := a["workerSelector"].(object); ok {
			labels, _ := ws["matchLabels"].(object)
			for k, v := range labels {
				sel[k] = fmt.Sprint(v)
			}
		}
		created, err := s.store.CreateActor(Actor{Atespace: text(m, "atespace"), Name: text(m, "name"), Selector: sel})
		return s.actor(created), err
	case "DeleteActor":
		anyState, _ := in["anyState"].(bool)
		a, err := s.store.DeleteActor(name, anyState)
		return s.actor(a), err
	case "SuspendActor":
		return wrap(s.store.Suspend(ctx, name))
	case "PauseActor":
		return wrap(s.store.Pause(ctx, name))
	case "RevertActor":
		return wrap(s.store.Revert(name))
	case "ResumeActor":
		a, resumed, err := s.store.Resume(ctx, name)
		if err != nil {
			return nil, err
		}
		return object{"actor": s.actor(a), "resumed": resumed}, nil
	case "ListActors":
		actors, _ := s.store.Snapshot()
		var all []any
		for _, a := range actors {
			if space := text(in, "atespace"); (space == "" || space == a.Atespace) && !s.hidden(a.Key()) {
				all = append(all, s.actor(a))
			}
		}
		return page("actors", all, in)
	case "GetWorker":
		w, ok := s.store.worker(name)
		if !ok {
			return nil, status.Errorf(codes.NotFound, "worker %s not found", name)
		}
		return s.worker(w), nil
	case "ListWorkers":
		_, workers := s.store.Snapshot()
		var all []any
		for _, w := range workers {
			if !s.hidden(w.Name) {
				all = append(all, s.worker(w))
			}
		}
		return page("workers", all, in)
	case "DrainWorker":
		w, err := s.store.Drain(name)
		return s.worker(w), err
	case "ListWorkerActorAssignments":
		if _, ok := s.store.worker(name); !ok {
			return nil, status.Errorf(codes.NotFound, "worker %s not found", name)
		}
		actors, _ := s.store.Snapshot()
		var all []any
		for _, a := range actors {
			if a.Worker == name {
				all = append(all, assignment(a))
			}
		}
		return page("actorAssignments", all, in)
	}
	return nil, status.Errorf(codes.Unimplemented, "method %s not implemented", method)
}

func (s *Server) hidden(name string) bool {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.store.take(func(f *Fault) bool { return f.Hide && f.Object == name }) != nil
}

// page cuts a list as the API does: at most a thousand, and a token that is opaque.
func page(key string, all []any, in object) (any, error) {
	size := 1000
	if n, ok := in["pageSize"].(float64); ok {
		if n < 0 {
			return nil, status.Error(codes.InvalidArgument, "page_size is negative")
		}
		if n > 0 && n < 1000 {
			size = int(n)
		}
	}
	start := 0
	if token := text(in, "pageToken"); token != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(token, "at-"))
		if err != nil || !strings.HasPrefix(token, "at-") {
			return nil, status.Error(codes.InvalidArgument, "invalid page_token")
		}
		start = min(n, len(all))
	}
	end := min(start+size, len(all))
	out := object{key: all[start:end]}
	if all == nil {
		out[key] = []any{}
	}
	if end < len(all) {
		out["nextPageToken"] = fmt.Sprintf("at-%d", end)
	}
	return out, nil
}

// actor makes the union of what the generations say of an actor; what one of them lacks is left out when it is encoded.
func (s *Server) actor(a Actor) object {
	s.store.mu.Lock()
	shown := s.store.take(func(f *Fault) bool { return f.State != "" && f.Object == a.Key() })
	s.store.mu.Unlock()
	var state any = "ACTOR_STATE_" + a.State
	if shown != nil {
		if n, err := strconv.Atoi(shown.State); err == nil {
			state = n
		} else {
			state = "ACTOR_STATE_" + shown.State
		}
	}
	st := object{"state": state}
	if w, ok := s.store.worker(a.Worker); ok && a.Worker != "" {
		st["workerAssignment"] = object{"workerNamespace": w.Namespace, "workerPool": w.Pool, "workerPod": w.Pod, "workerPodUid": w.PodUID,
			"workerPodIp": w.IP, "workerPodIps": []string{w.IP}, "worker": object{"name": w.Name}, "nodeName": w.Node}
	}
	if len(a.SnapshotNodes) > 0 {
		ls := object{"snapshotName": "local-" + a.Name, "nodeVmsWithLocalSnapshots": a.SnapshotNodes}
		st["localSnapshotInfo"], st["localSnapshot"] = ls, ls
		st["snapshots"] = []any{object{"name": "local-" + a.Name, "durability": "LOCAL", "storageStatus": "COMPLETED"}}
	}
	if a.AssignedNode != "" {
		st["assignedNode"] = a.AssignedNode
	}
	if len(a.Snapshot) > 0 {
		st["externalSnapshot"] = object{"snapshotUri": "sim://" + a.Key()}
		st["latestSnapshot"] = object{"atespace": a.Atespace, "name": "external-" + a.Name}
	}
	if a.State == Crashed {
		st["crash"] = object{"message": a.CrashMessage}
	}
	out := object{"metadata": object{"atespace": a.Atespace, "name": a.Name, "uid": a.UID, "version": strconv.FormatInt(a.Version, 10)}, "status": st}
	if len(a.Selector) > 0 {
		out["workerSelector"] = object{"matchLabels": maps.Clone(a.Selector)}
	}
	return out
}

func assignment(a Actor) object {
	return object{"actor": object{"atespace": a.Atespace, "name": a.Name}, "actorUid": a.UID, "metadata": object{"name": a.UID}}
}

func (s *Server) worker(w Worker) object {
	s.store.mu.Lock()
	var on []*Actor
	for _, a := range s.store.Actors {
		if a.Worker == w.Name && w.Name != "" {
			on = append(on, a)
		}
	}
	slices.SortFunc(on, func(x, y *Actor) int { return cmp.Compare(x.Key(), y.Key()) })
	st := object{"state": "WORKER_STATE_" + w.State, "capacity": object{"actors": w.Capacity}, "allocated": object{"actors": len(on)}}
	if w.State == "" {
		delete(st, "state")
	}
	if len(on) > 0 {
		st["assignment"] = assignment(*on[0])
	}
	s.store.mu.Unlock()
	out := object{"metadata": object{"name": w.Name, "version": strconv.FormatInt(w.Version, 10)}, "workerNamespace": w.Namespace, "workerPool": w.Pool,
		"workerPod": w.Pod, "workerPodUid": w.PodUID, "nodeName": w.Node, "ip": w.IP, "ips": []string{w.IP}, "sandboxClass": w.Class, "status": st}
	if len(w.Labels) > 0 {
		out["labels"] = w.Labels
	}
	return out
}
